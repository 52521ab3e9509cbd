"""The HTTP API for programs: a picture in, pictures and the record out; fields by name, described by OpenAPI.

    curl -F image=@cat.png -F instruction="make it snow" -F seed=3 http://127.0.0.1:7860/api/edits

Names and ranges are those of `toprope edit`. The description is at /openapi.json.

`web.serving` adds it to the server. It calls the controller alone. Programs of users rely on paths, fields and
statuses: some may be added, none renamed. Fields follow `images.request`. Tests: tests/images/test_images_api.py.
"""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, File, Form, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from toprope.errors import TopropeError
from toprope.images.request import FITS, LIKES, MOST_LETTERS, RANGES, SAMPLERS, SIZES, EditRequest
from toprope.images.web.controller import Controller, Outcome
from toprope.images.web.form import picked_loras, read_seed
from toprope.images.web.job_queue import Problem, State

__all__ = ["Edited", "Picture", "add_api"]

KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp"}

Size = Literal[SIZES]  # type: ignore[valid-type]
Fit = Literal[FITS]  # type: ignore[valid-type]
Sampler = Literal[SAMPLERS]  # type: ignore[valid-type]
Like = Literal[LIKES]  # type: ignore[valid-type]
Where = Literal["cpu", "device"]

BUSY = "the queue is full"
SEE = "see /openapi.json for names and ranges"
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


def _text(description: str) -> Any:
    return Form(max_length=MOST_LETTERS, description=description)


def _number(name: str, description: str) -> Any:
    _, least, most = RANGES[name]
    return Form(ge=least, le=most, description=description)


@dataclass
class Picture:
    """One picture of an edit.

    Attributes:
        seed: seed of its noise.
        media_type: "image/png".
        data: the file in base64.
    """

    seed: int
    media_type: str
    data: str


@dataclass
class Edited:
    """The result of an edit.

    Attributes:
        pictures: the pictures; their number is num_images.
        instruction: the instruction that was used: the client's own, or the refined one.
        notices: notices about deviations from the request, and about conversions of the picture.
        record: everything needed to repeat the edit; `toprope edit --repeat` reads it.
    """

    pictures: list[Picture]
    instruction: str
    notices: list[str]
    record: dict[str, Any]


def add_api(app: FastAPI, controller: Controller) -> None:
    """Add the API of a controller to an application: POST /api/edits and GET /api/model."""

    @app.exception_handler(TopropeError)
    async def refused(_request: Request, error: TopropeError) -> JSONResponse:
        status = 503 if error.what.startswith(BUSY) else 422
        return _error(status, error.what, error.looked_at, error.do)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name, given = str(first["loc"][-1]), str(first.get("input"))[:80]
        said = "it must be a file" if "UploadFile" in first["msg"] else first["msg"]
        if not request.headers.get("content-type", "").startswith(FORMS):
            return _error(422, "the request is no form.", request.headers.get("content-type", ""), f"send {FORMS[0]}")
        return _error(422, f"{name}: {said}.", f"{name}={given}", SEE)

    @app.get("/api/model", summary="The model, its device and the queue")
    def model() -> dict[str, Any]:
        """The model, the device, the queue, and the knobs with their defaults; null until the model is loaded."""
        return controller.facts() | {"options": controller.options(), "loras": sorted(controller.loras)}

    @app.post(
        "/api/edits",
        summary="Edit a picture by instruction",
        response_model=Edited,
        responses={413: {}, 422: {}, 500: {}, 503: {}},
    )
    async def edit(
        request: Request,
        image: Annotated[UploadFile, File(description="PNG, JPEG, WebP, TIFF, ... of any mode")],
        instruction: Annotated[str, _text('What to do, such as "make it snow"')],
        negative: Annotated[str | None, _text("What the picture should not show")] = None,
        steps: Annotated[int | None, _number("steps", "Denoising steps")] = None,
        guidance: Annotated[float | None, _number("guidance", "How closely the instruction is followed")] = None,
        image_guidance: Annotated[float | None, _number("image_guidance", "The same for the picture")] = None,
        refine_strength: Annotated[
            float | None, _number("refine_strength", "Part of the steps that the base model does")
        ] = None,
        cfg_norm: Annotated[bool | None, Form(description="Whether guidance may not make a prediction larger")] = None,
        seed: Annotated[str | None, Form(description='0 to 2**64 - 1, or "random"', max_length=20)] = None,
        num_images: Annotated[int, _number("num_images", "Pictures, with the seeds N, N + 1, ...")] = 1,
        size: Annotated[Size, Form(description="What the model sees")] = "model",
        max_pixels: Annotated[int | None, _number("max_pixels", "Largest number of pixels that the model sees")] = None,
        fit: Annotated[Fit, Form(description="How the picture gets into that size")] = "stretch",
        generator_device: Annotated[Where, Form(description="Where noise is drawn")] = "cpu",
        sampler: Annotated[Sampler | None, Form(description="A scheduler instead of the model's own")] = None,
        like: Annotated[Like | None, Form(description="'authors': as the scripts of the model's authors do it")] = None,
        refine: Annotated[bool | None, Form(description="Whether the server's refiner rewords the instruction")] = None,
        mask: Annotated[UploadFile | None, File(description="Of the picture's size: white may change")] = None,
        mask_feather: Annotated[int | None, _number("mask_feather", "Pixels of the mask's blended edge")] = None,
        lora: Annotated[list[str] | None, Form(description="NAME or NAME:SCALE of /api/model; can be repeated")] = None,
    ) -> Any:
        """Edit a picture and answer with the result. Fields that are left out are the model's own.

        The answer comes when the edit is done. A client that goes away cancels it.
        """
        unknown = sorted({*request.query_params, *await request.form()} - fields)
        if unknown or request.query_params:
            wrong = ", ".join(unknown or request.query_params)
            what = f"there is no field {wrong}." if unknown else f"{wrong}: it is in the address, not in the form."
            return _error(422, what, f"the fields are {', '.join(sorted(fields))}", SEE)
        most = controller.limits.upload
        for name, sent in (("image", image), ("mask", mask)):
            if sent is not None and (sent.size or 0) > most:
                do = "make it smaller, or start the server with a larger --max-upload"
                return _error(413, f"{name}: the file has more than {most / 2**20:g} MiB.", f"{sent.size} bytes", do)
        folder = await asyncio.to_thread(_folder, controller.scratch)
        try:
            path = folder / _file_name(image.filename)
            await asyncio.to_thread(_store, image, path)
            covering = None
            if mask is not None:
                covering = folder / f"mask-{_file_name(mask.filename)}"
                await asyncio.to_thread(_store, mask, covering)
            asked = EditRequest(
                str(path), instruction.strip(), negative, steps, guidance, image_guidance, refine_strength, cfg_norm,
                read_seed(seed), num_images, size, max_pixels, fit, generator_device, refine, sampler, like,
                None if covering is None else str(covering), mask_feather,
            )  # fmt: skip
            loras = [each.rpartition(":") if ":" in each else (each, "", "1") for each in lora or ()]
            picked = picked_loras(
                [name for name, _, _ in loras], [_scale(text) for _, _, text in loras], controller.loras
            )
            return await _done(controller, request, asked, picked)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    fields = set(signature(edit).parameters) - {"request"}

    @app.api_route(
        "/api/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False
    )
    def nothing(request: Request, path: str) -> JSONResponse:
        at = {"model": "GET", "edits": "POST"}.get(path)
        do = f"use {at}" if at else "see /openapi.json for what there is"
        return _error(405 if at else 404, f"there is no {request.method} /api/{path}.", "", do)


async def _done(controller: Controller, http: Request, asked: EditRequest, loras: list[str]) -> Any:
    """Wait for the result of an edit; the edit is cancelled if the client disconnects."""
    client = str(uuid.uuid4())
    job = await asyncio.to_thread(controller.submit, client, asked, loras)
    try:
        while not job.state.over:
            if await http.is_disconnected():
                job.cancel()
            await asyncio.sleep(0.05)
        if job.state is not State.DONE:
            problem = job.problem or Problem("the edit was cancelled.")
            return _error(422 if job.refused else 500, problem.what, problem.looked_at, problem.do)
        return await asyncio.to_thread(_answer, job.result)
    finally:
        await asyncio.to_thread(controller.dismiss, job)


def _answer(outcome: Outcome) -> Edited:
    """The answer to a client: pictures in base64, and the record."""
    pictures = [
        Picture(
            each.seed,
            KINDS.get(each.picture.suffix, "application/octet-stream"),
            base64.b64encode(each.picture.read_bytes()).decode(),
        )
        for each in outcome.entries
    ]
    return Edited(pictures, outcome.instruction, outcome.notes, dict(outcome.entries[0].record))


def _error(status: int, what: str, looked_at: str, do: str) -> JSONResponse:
    return JSONResponse({"error": {"what": what, "looked_at": looked_at, "do": do}}, status)


def _folder(scratch: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="api-", dir=scratch))


def _store(image: UploadFile, path: Path) -> None:
    with open(path, "wb") as file:
        shutil.copyfileobj(image.file, file)


def _file_name(given: str | None) -> str:
    """Make a name for the file that a client sent, without its path."""
    name = re.split(r"[/\\]", given or "")[-1]
    stem, dot, ending = name.rpartition(".")
    stem = re.sub(r"[^\w.-]+", "_", stem if dot else ending).strip("._")[:60] or "picture"
    return f"{stem}.{ending.lower()}" if dot and re.fullmatch(r"[A-Za-z0-9]{1,5}", ending) else stem


def _scale(text: str) -> float:
    """Read the scale of a LoRA; a text that is no number is refused later, by name."""
    try:
        return float(text)
    except ValueError:
        return float("nan")
