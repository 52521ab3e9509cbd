"""Editing pictures by instruction, on any device.

    from toprope.images import EditRequest, Engine

    with Engine.open("models/instruct-pix2pix") as engine:
        result = engine.edit(EditRequest("cat.png", "make it snow", seed=3))
    result.pictures[0].save("snow.png")

Importing it imports no torch, diffusers or Pillow; the first use does. Tests: tests/project/test_without_torch.py,
tests/images/test_images_request.py.
"""

# For maintainers: called by `toprope edit`, `toprope ui` and users' programs. The names of `__all__` are public:
# docs/images.md describes them, and tests/images hold them.

from importlib import import_module
from typing import TYPE_CHECKING

from toprope.images.request import EditRequest
from toprope.images.results import EditResult
from toprope.progress import Step

if TYPE_CHECKING:
    from toprope.images.engine import Engine

__all__ = ["EditRequest", "EditResult", "Engine", "Step"]


def __getattr__(name: str) -> object:
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        engine = import_module(f"{__name__}.engine")
    except ModuleNotFoundError as error:
        from toprope.extras import explained

        raise explained(error, __name__) from None
    return globals().setdefault(name, engine.Engine)
