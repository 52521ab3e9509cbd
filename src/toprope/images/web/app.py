"""The page, in Gradio: what it looks like, and which part calls what of the studio. No thinking here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import gradio as gr

from toprope.errors import TopropeError
from toprope.images.request import FITS, KNOBS, SIZES
from toprope.images.web.desk import Job, Problem, State, View, follow
from toprope.images.web.form import FIELDS, SLIDERS, dice, knobs, seed_text
from toprope.images.web.history import Entry, caption, loras_of, parameters
from toprope.images.web.panel import panel_html, progress_html, status_html
from toprope.images.web.studio import Outcome, Studio
from toprope.images.web.tables import parameters_html, refined_text, rows_html

__all__ = ["SLOTS", "make_app"]

SLOTS = 4
"""LoRAs that can be picked at once."""

HIDDEN: dict[str, Any] = {"api_visibility": "undocumented"}
"""For the page alone: its fields have places and no names. Programs use `toprope.images.web.api`."""

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "undocumented"}
NAMES = {
    "steps": "Steps",
    "guidance": "Guidance",
    "image_guidance": "Image guidance",
    "refine_strength": "Refine strength",
    "cfg_norm": "Guidance with norm: it makes no prediction larger",
    "negative": "Negative: what the picture shall not be",
}


def client_of(request: gr.Request) -> str:
    """The page that asks: every tab of a browser is another one."""
    session = request.session_hash
    return session if session else f"address {request.client.host if request.client else 'unknown'}"


class Page:
    """The components of the page, by what they are, and their handlers.

    Args:
        studio: does the work.
    """

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.fields: dict[str, Any] = {}
        with gr.Blocks(
            title=f"{studio.name} · toprope", analytics_enabled=False, delete_cache=(3600, 86400), fill_width=True
        ) as blocks:
            self.blocks = blocks
            self.status = gr.HTML(status_html(studio.facts()), elem_id="status")
            with gr.Row(equal_height=False):
                with gr.Column(scale=5, min_width=340):
                    self._form()
                    self.panel = gr.HTML(panel_html(studio.facts()), elem_id="panel")
                with gr.Column(scale=8, min_width=480), gr.Tabs():
                    with gr.Tab("One picture", id="single"):
                        self._single()
                    with gr.Tab("Batch", id="batch"):
                        self._batch()
                    with gr.Tab("History", id="history"):
                        self._history()
            self._wire()

    # What is on the page

    def _form(self) -> None:
        fields = self.fields
        fields["instruction"] = gr.Textbox(
            label="Instruction", placeholder="make it snow", lines=2, max_lines=6, elem_id="instruction"
        )
        fields["refine"] = gr.Checkbox(label="Word the instruction anew", value=True, visible=False, elem_id="refine")
        with gr.Row(elem_classes="seed"):
            fields["seed"] = gr.Textbox(
                label="Seed", placeholder="any: a new one for every edit", elem_id="seed", scale=4, max_lines=1
            )
            self.dice = gr.Button("Roll", elem_id="dice", scale=1, min_width=92, size="sm")
        for pair in (("steps", "refine_strength"), ("guidance", "image_guidance")):
            with gr.Row():
                for name in pair:
                    least, most, step = SLIDERS[name]
                    fields[name] = gr.Slider(
                        least, most, step=step, label=NAMES[name], visible=False, elem_id=name,
                        min_width=180, buttons=[],
                    )  # fmt: skip
        with gr.Accordion("LoRAs", open=True, visible=bool(self.studio.loras)):
            self.picker = gr.Dropdown(
                sorted(self.studio.loras), value=[], multiselect=True, max_choices=SLOTS, label="Add to the model",
                elem_id="loras",
            )  # fmt: skip
            self.scales = [
                gr.Slider(0, 2, value=1, step=0.05, label=f"Scale {at + 1}", visible=False, elem_id=f"scale-{at + 1}")
                for at in range(SLOTS)
            ]
        with gr.Accordion("More", open=False):
            fields["negative"] = gr.Textbox(label=NAMES["negative"], visible=False, elem_id="negative")
            fields["cfg_norm"] = gr.Checkbox(label=NAMES["cfg_norm"], visible=False, elem_id="cfg_norm")
            fields["num_images"] = gr.Slider(1, 4, value=1, step=1, label="Pictures, each with the next seed")
            fields["size"] = gr.Dropdown(list(SIZES), value="model", label="Size that the model sees")
            fields["fit"] = gr.Dropdown(list(FITS), value="stretch", label="How another shape gets into it")

    def _single(self) -> None:
        with gr.Row(equal_height=False):
            with gr.Column(min_width=220):
                self.image = gr.Image(
                    type="filepath", image_mode=None, label="Picture", sources=["upload", "clipboard"], height=340,
                    buttons=[], elem_id="picture",
                )  # fmt: skip
                # The path alone: the engine opens pictures itself, and says what is wrong with one.
                self.image.preprocess = lambda payload: payload.path if payload is not None else None
                with gr.Row():
                    self.edit = gr.Button("Edit", variant="primary", elem_id="edit", min_width=80)
                    self.cancel = gr.Button("Cancel", elem_id="cancel", min_width=80)
            with gr.Column(min_width=220):
                self.slider = gr.ImageSlider(
                    type="filepath", label="Before and after", height=340, interactive=False, elem_id="slider",
                    buttons=["fullscreen"],
                )  # fmt: skip
                self.several = gr.Gallery(
                    label="All pictures of this edit", show_label=False, columns=4, height=150, visible=False,
                    allow_preview=False, elem_id="several",
                )  # fmt: skip
        self.progress = gr.HTML(progress_html(None), elem_id="progress")
        self.refined = gr.Textbox(
            label="Instruction that was used", visible=False, interactive=False, elem_id="refined"
        )
        self.files = gr.File(
            label="Files: pictures, and how to repeat them", visible=False, interactive=False, elem_id="files"
        )

    def _batch(self) -> None:
        self.uploads = gr.File(
            file_count="multiple", file_types=["image"], label="Pictures: the form at the left goes for all of them",
            height=150, elem_id="uploads",
        )  # fmt: skip
        with gr.Row():
            self.edit_all = gr.Button("Edit all", variant="primary", elem_id="edit-all")
            self.cancel_all = gr.Button("Cancel", elem_id="cancel-all")
        self.progress_all = gr.HTML(progress_html(None), elem_id="progress-all")
        self.rows = gr.HTML("", elem_id="rows")
        self.results = gr.Gallery(
            label="Results", show_label=False, columns=4, height=260, visible=False, elem_id="results"
        )
        self.packed = gr.File(label="All of them as a ZIP", visible=False, interactive=False, elem_id="packed")

    def _history(self) -> None:
        self.gallery = gr.Gallery(
            label="What this page has made",
            show_label=False,
            columns=5,
            height=260,
            allow_preview=False,
            elem_id="gallery",
        )
        self.chosen = gr.State(None)
        self.parameters = gr.HTML(parameters_html(None), elem_id="parameters")
        self.again = gr.Button("Use these parameters", interactive=False, elem_id="again")

    # Who calls what

    def _wire(self) -> None:
        inputs = [*(self.fields[name] for name in FIELDS), self.picker, *self.scales]
        single = [self.progress, self.slider, self.several, self.files, self.refined, self.gallery]
        batch = [self.progress_all, self.rows, self.results, self.packed, self.gallery]
        common: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None}
        self.edit.click(self.on_edit, [self.image, *inputs], single, api_name="edit", **HIDDEN, **common)
        self.fields["instruction"].submit(self.on_edit, [self.image, *inputs], single, concurrency_limit=None, **QUIET)
        self.edit_all.click(self.on_edit_all, [self.uploads, *inputs], batch, api_name="batch", **HIDDEN, **common)
        for button in (self.cancel, self.cancel_all):
            button.click(self.on_cancel, None, None, queue=False, **QUIET)
        self.dice.click(dice, None, self.fields["seed"], queue=False, **QUIET)
        self.picker.change(self.on_pick, self.picker, self.scales, queue=False, **QUIET)
        self.several.select(self.on_other, None, self.slider, queue=False, **QUIET)
        self.gallery.select(self.on_choose, None, [self.chosen, self.parameters, self.again], queue=False, **QUIET)
        self.again.click(self.on_again, self.chosen, inputs, queue=False, **QUIET)
        watch = gr.Timer(1.0)
        watch.tick(self.on_tick, None, [self.status, self.panel], queue=False, **QUIET)
        until = gr.Timer(0.5)
        shown = [until, *(self.fields[name] for name in (*KNOBS, "refine"))]
        until.tick(self.on_ready, None, shown, queue=False, **QUIET)
        self.blocks.load(self.on_tick, None, [self.status, self.panel], queue=False, **QUIET)
        self.blocks.load(self.on_ready, None, shown, queue=False, **QUIET)
        self.blocks.unload(self.on_leave)
        gr.api(self.device, api_name="device", queue=False)

    def values(self, given: Sequence[Any]) -> dict[str, Any]:
        """The form by its fields' names."""
        found = dict(zip(FIELDS, given, strict=False))
        rest = given[len(FIELDS) :]
        return found | {"loras": rest[0] if rest else [], "scales": list(rest[1:])}

    async def on_edit(self, request: gr.Request, image: str | None, *given: Any) -> AsyncIterator[dict[Any, Any]]:
        """Edit one picture; every step is told."""
        client = client_of(request)
        job = None
        try:
            job = await asyncio.to_thread(self.studio.edit, client, self.values(given), image)
            async for view in follow(job):
                yield {self.progress: progress_html(view)} | (self._made(job, client, view) if view.state.over else {})
        except TopropeError as error:
            yield {self.progress: progress_html(View(State.FAILED, problem=Problem.of(error)))}
        finally:
            if job is not None and not job.state.over:
                job.cancel()  # nobody listens any more

    async def on_edit_all(
        self, request: gr.Request, images: list[str] | None, *given: Any
    ) -> AsyncIterator[dict[Any, Any]]:
        """Edit several pictures; every step is told, and every picture that is done."""
        client, images = client_of(request), list(images or [])
        job, parts = None, -1
        try:
            job = await asyncio.to_thread(self.studio.edit_all, client, self.values(given), images)
            async for view in follow(job):
                told: dict[Any, Any] = {self.progress_all: progress_html(view, len(images))}
                if view.parts != parts or view.state.over:
                    parts = view.parts
                    told[self.rows] = rows_html(job.parts[:parts], [image.rsplit("/", 1)[-1] for image in images])
                yield told | (self._made_all(job, client) if view.state.over else {})
        except TopropeError as error:
            yield {self.progress_all: progress_html(View(State.FAILED, problem=Problem.of(error)))}
        finally:
            if job is not None and not job.state.over:
                job.cancel()

    def on_cancel(self, request: gr.Request) -> None:
        """Stop what this page asked for."""
        self.studio.cancel(client_of(request))

    def on_leave(self, request: gr.Request) -> None:
        """The page was closed."""
        self.studio.leave(client_of(request))

    def on_pick(self, picked: list[str] | None) -> list[Any]:
        """A slider for each LoRA that is picked."""
        names = list(picked or [])[:SLOTS]
        return [
            gr.update(visible=at < len(names), **({"label": f"Scale of {names[at]}"} if at < len(names) else {}))
            for at in range(SLOTS)
        ]

    def on_other(self, event: gr.SelectData, request: gr.Request) -> Any:
        """Another picture of the last edit into the slider."""
        entries = self.studio.histories.of(client_of(request))
        made = entries[: entries[0].record["job"]["of"]][::-1] if entries else []
        return compared(made[event.index]) if event.index < len(made) else gr.skip()

    def on_choose(self, event: gr.SelectData, request: gr.Request) -> tuple[Any, ...]:
        """A picture of the history was chosen."""
        entries = self.studio.histories.of(client_of(request))
        if event.index >= len(entries):
            return None, parameters_html(None), gr.update(interactive=False)
        entry = entries[event.index]
        return entry.picture.name, parameters_html(parameters(entry)), gr.update(interactive=True)

    def on_again(self, chosen: str | None, request: gr.Request) -> list[Any]:
        """The parameters of a picture of the history, into the form."""
        entries = [each for each in self.studio.histories.of(client_of(request)) if each.picture.name == chosen]
        if not entries:
            return [gr.skip()] * (len(FIELDS) + 1 + SLOTS)
        asked: Any = entries[0].record["request"]
        values = {**asked, "seed": seed_text(entries[0].seed), "num_images": 1, "refine": False}
        loras = loras_of(entries[0], self.studio.loras)[:SLOTS]
        scales = [
            gr.update(value=loras[at][1], visible=True, label=f"Scale of {loras[at][0]}")
            if at < len(loras)
            else gr.update(visible=False)
            for at in range(SLOTS)
        ]
        return [*(values.get(name, gr.skip()) for name in FIELDS), [name for name, _ in loras], *scales]

    def on_tick(self) -> tuple[str, str]:
        """The line below the title, and the panel."""
        facts = self.studio.facts()
        return status_html(facts), panel_html(facts)

    def on_ready(self) -> list[Any]:
        """Once the model is there: the knobs that it has, and the timer that asked for them stops."""
        options = self.studio.options()
        if options is None:
            stop = self.studio.loader.state == "failed"
            return [gr.Timer(active=not stop), *(gr.skip() for _ in (*KNOBS, "refine"))]
        found: list[Any] = [gr.Timer(active=False)]
        for knob in knobs(options).values():
            told: dict[str, Any] = {"visible": knob.shown}
            if knob.value is not None:
                told["value"] = knob.value
            if knob.most is not None:
                told["maximum"] = knob.most
            found.append(gr.update(**told))
        return [*found, gr.update(visible=self.studio.refiner() is not None)]

    def device(self) -> dict[str, Any]:
        """The model, the device and the queue."""
        return self.studio.facts()

    # What a page is told at the end of a job

    def _shown(self, client: str) -> list[tuple[str, str]]:
        return [(str(entry.picture), caption(entry)) for entry in self.studio.histories.of(client)]

    def _made(self, job: Job, client: str, view: View) -> dict[Any, Any]:
        outcome: Outcome | None = job.result
        if outcome is None or not outcome.entries:
            return {}
        entries = outcome.entries
        return {
            self.progress: progress_html(view, notes=outcome.notes),
            self.slider: compared(entries[0]),
            self.several: gr.update(
                value=[(str(each.picture), f"seed {each.seed}") for each in entries], visible=len(entries) > 1
            ),
            self.files: gr.update(value=paths_of(entries), visible=True),
            self.refined: gr.update(
                value=refined_text(outcome.instruction, outcome.refinement), visible=outcome.refinement is not None
            ),
            self.gallery: self._shown(client),
        }

    def _made_all(self, job: Job, client: str) -> dict[Any, Any]:
        outcome: Outcome | None = job.result
        if outcome is None or not outcome.entries:
            return {}
        return {
            self.results: gr.update(value=[(str(each.picture), each.name) for each in outcome.entries], visible=True),
            self.packed: gr.update(value=str(outcome.packed), visible=outcome.packed is not None),
            self.gallery: self._shown(client),
        }


def compared(entry: Entry) -> Any:
    """What the slider shows of an entry."""
    return (str(entry.before), str(entry.picture))


def paths_of(entries: Sequence[Entry]) -> list[str]:
    """The files of entries."""
    return [str(path) for entry in entries for path in (entry.picture, entry.sidecar)]


def make_app(studio: Studio) -> Any:
    """The application of Gradio for a studio, not launched yet.

    Args:
        studio: does the work; closed by whoever made it.
    """
    page = Page(studio)
    page.blocks.queue(default_concurrency_limit=None, max_size=None)
    return page.blocks
