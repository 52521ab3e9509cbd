"""Choose all values that a request leaves open: the family's defaults, the picture, its frame, seed, instruction.

Called by `images.engine` once for each request of a call; what it chose is in the record. All that can be refused is
refused before the refiner is asked, which takes seconds. A notice needs its translation in `images.web.messages`.
Tests: tests/images/test_images_engine.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toprope import device
from toprope.errors import UsageError
from toprope.images.batching import ResolvedRequest
from toprope.images.callbacks import Notices
from toprope.images.memory.placement import Loaded
from toprope.images.picture.files import open_picture
from toprope.images.picture.geometry import plan_as_authors, plan_frame
from toprope.images.picture.masks import open_mask
from toprope.images.request import EditRequest
from toprope.images.truncation import truncated

__all__ = ["resolve_request"]


def resolve_request(loaded: Loaded, request: EditRequest, refiner: Any, notices: Notices) -> ResolvedRequest:
    """Choose the open values of a request.

    Args:
        loaded: the model.
        request: the caller's request.
        refiner: a refiner of `toprope.images.refining.opening`; None for none.
        notices: receives stages that take long, and deviations from the request.

    Raises:
        UsageError: the request is invalid, or the model does not have one of its knobs.
        ImageError: the picture or the mask cannot be read, or they do not match.
    """
    family = loaded.family
    request = request.validate()
    family.refuse(request)
    if request.refine and refiner is None:
        raise UsageError("refine is on, and the engine has no refiner.", do="open the engine with refiner=...")
    defaults = loaded.defaults()
    closed: dict[str, Any] = {name: defaults[name] for name in family.options if getattr(request, name) is None}
    closed["seed"] = device.concrete_seed(request.seed)
    opened = open_picture(request.image)
    mask = None
    if request.mask is not None:
        mask = open_mask(request.mask, opened.picture.size, request.mask_feather)
    native = family.native(loaded.pipeline)
    bounds = [each for each in (request.max_pixels, native.max_pixels) if each is not None]
    if request.like == "authors":
        closed["generator_device"] = "device"
        frame = plan_as_authors(
            opened.picture.size, pixels=native.pixels, multiple=native.multiple, square=native.square
        )
    else:
        frame = plan_frame(
            opened.picture.size, size=request.size, fit=request.fit, pixels=native.pixels, multiple=native.multiple,
            square=native.square, sizes=native.sizes, max_pixels=min(bounds, default=None),
        )  # fmt: skip
    family.check(loaded.pipeline, replace(request, **closed))
    refinement = None
    if refiner is not None and request.refine is not False:
        notices.stage("rewording the instruction")
        found = refiner.refine(opened.picture, request.instruction)
        if found.refined:
            closed["instruction"] = family.worded(loaded.pipeline, found.instruction, found.description)
        else:
            notices.notice(f"the instruction is used as it was given: {found.reason}")
        refinement = found.as_json()
    request = replace(request, **closed)
    readers = family.readers(loaded.pipeline)
    for what in ("instruction", "negative"):
        for said in truncated(readers, getattr(request, what) or "", what):
            notices.notice(said)
    for said in family.remarks(loaded.pipeline, request):
        notices.notice(said)
    return ResolvedRequest(request, opened, frame, closed["seed"], refinement, mask)
