"""The page, in Gradio: what it looks like, and which part calls what of the studio. No thinking here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import gradio as gr

from toprope.errors import TopropeError
from toprope.images.request import FITS, KNOBS, SIZES
from toprope.images.web.desk import Job, Problem, State, follow
from toprope.images.web.entries import parameters
from toprope.images.web.form import FIELDS, SLIDERS, dice, knobs
from toprope.images.web.panel import panel_html, problem_html, progress_html, status_html
from toprope.images.web.sessions import Step, StepState
from toprope.images.web.studio import Outcome, Studio
from toprope.images.web.tables import brought_html, ended_html, parameters_html, refined_text, rows_html
from toprope.images.web.tree import last_request, nodes, without_picture

__all__ = ["SLOTS", "make_app"]

SLOTS = 4
"""LoRAs that can be picked at once."""

BOX = (0, 0, 100, 100)
"""The rectangle of a mask that covers all: left, top, right, bottom in percent."""

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


class Page:
    """The components of the page, by what they are, and their handlers.

    Args:
        studio: does the work.
    """

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.fields: dict[str, Any] = {}
        self._following: dict[str, object] = {}  # by tab: what follows edits for it
        with gr.Blocks(
            title=f"{studio.name} · toprope", analytics_enabled=False, delete_cache=(3600, 86400), fill_width=True
        ) as blocks:
            self.blocks = blocks
            # The value is a secret of the browser; the key only keeps it readable after a restart of the server.
            self.session = gr.BrowserState(None, storage_key="toprope-session", secret="toprope")
            self.shown = gr.State(None)
            self.order = gr.State([])
            self.status = gr.HTML(status_html(studio.facts()), elem_id="status")
            with gr.Row(elem_id="editor", equal_height=False):
                with gr.Column(elem_id="view"), gr.Tabs():
                    with gr.Tab("Picture", id="single"):
                        self._view()
                    with gr.Tab("Batch", id="batch"):
                        self._batch()
                with gr.Column(elem_id="ask"):
                    self._ask()
                    self._mask()
                with gr.Column(elem_id="tree"):
                    self._tree()
                with gr.Column(elem_id="settings"):
                    self._form()
                    with gr.Accordion("Device, memory and queue", open=False, elem_id="facts"):
                        self.panel = gr.HTML(panel_html(studio.facts()), elem_id="panel")
            self._wire()

    # What is on the page

    def _view(self) -> None:
        self.image = gr.Image(
            type="filepath", image_mode=None, label="Picture", sources=["upload", "clipboard"], height=420,
            buttons=[], elem_id="picture",
        )  # fmt: skip
        # The path alone: the engine opens pictures itself, and says what is wrong with one.
        self.image.preprocess = lambda payload: payload.path if payload is not None else None
        self.source = gr.Image(
            type="filepath", label="Picture", interactive=False, visible=False, elem_id="source", buttons=["fullscreen"]
        )
        self.slider = gr.ImageSlider(
            type="filepath", label="Before and after", interactive=False, visible=False, elem_id="slider",
            buttons=["fullscreen"],
        )  # fmt: skip
        with gr.Row(elem_classes="tools"):
            self.undo = gr.Button("Undo", elem_id="undo", size="sm", min_width=80, interactive=False)
            self.redo = gr.Button("Redo", elem_id="redo", size="sm", min_width=80, interactive=False)
            self.other = gr.UploadButton(
                "Another picture", elem_id="other", size="sm", min_width=80, file_types=["image"], type="filepath"
            )
        self.note = gr.HTML("", elem_id="note", visible=False)
        self.digest = gr.State("")
        self.use_source = gr.Button("Use its source", elem_id="use-source", size="sm", visible=False)

    def _ask(self) -> None:
        self.fields["instruction"] = gr.Textbox(
            label="Instruction", placeholder="make it snow", lines=2, max_lines=6, elem_id="instruction"
        )
        with gr.Row():
            self.edit = gr.Button("Edit", variant="primary", elem_id="edit", min_width=80)
            self.again = gr.Button("Try again", elem_id="again", min_width=80, interactive=False)
            self.cancel = gr.Button("Cancel", elem_id="cancel", min_width=80)
        self.problem = gr.HTML("", elem_id="problem", visible=False)
        self.progress = gr.HTML(progress_html(None), elem_id="progress")
        self.refined = gr.Textbox(
            label="Instruction that was used", visible=False, interactive=False, elem_id="refined"
        )

    def _mask(self) -> None:
        with gr.Accordion("Mask: only a part may change", open=False, elem_id="masking") as self.masking:
            with gr.Row():
                self.box = [
                    gr.Number(
                        value, label=f"{side}, %", minimum=0, maximum=100, min_width=70, elem_id=f"box-{side.lower()}"
                    )
                    for side, value in zip(("Left", "Top", "Right", "Bottom"), BOX, strict=True)
                ]
            self.mask = gr.Image(
                type="filepath", image_mode=None, label="Or a picture of the same size: white may change",
                sources=["upload"], height=160, buttons=[], elem_id="mask",
            )  # fmt: skip
            self.mask.preprocess = lambda payload: payload.path if payload is not None else None
            self.clear = gr.Button("Clear the mask", elem_id="clear-mask", size="sm")

    def _form(self) -> None:
        fields = self.fields
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

    def _batch(self) -> None:
        self.uploads = gr.File(
            file_count="multiple", file_types=["image"], label="Pictures: the instruction and settings go for all",
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

    def _tree(self) -> None:
        self.gallery = gr.Gallery(
            label="Steps of this session", show_label=False, columns=6, height="auto", allow_preview=False,
            visible=False, elem_id="gallery", buttons=[],
        )  # fmt: skip
        self.ended = gr.HTML("", elem_id="ended", visible=False)
        self.resume = gr.Button("Run the interrupted edits again", elem_id="resume", size="sm", visible=False)
        self.files = gr.File(
            label="Files: the picture, and how to repeat it", visible=False, interactive=False, elem_id="files"
        )
        with gr.Accordion("How it was made", open=False, visible=False, elem_id="made") as self.made:
            self.parameters = gr.HTML(parameters_html(None), elem_id="parameters")
            self.reuse = gr.Button("Use these settings", elem_id="reuse", size="sm")

    # Who calls what

    def _wire(self) -> None:
        inputs = [*(self.fields[name] for name in FIELDS), self.picker, *self.scales, self.mask, *self.box]
        asked = [self.problem, self.ended, self.resume]
        step = [
            self.shown, self.order, self.image, self.source, self.slider, self.undo, self.redo, self.again,
            self.gallery, self.ended, self.resume, self.files, self.made, self.parameters, self.refined,
        ]  # fmt: skip
        brought = [self.note, self.digest, self.use_source]
        batch = [self.progress_all, self.rows, self.results, self.packed]
        followed = [self.progress, *batch, *step]
        filled = [*inputs, self.masking]
        ready = [*(self.fields[name] for name in (*KNOBS, "refine"))]
        here, quick = self.session, {"queue": False, **QUIET}
        long: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None, "trigger_mode": "multiple"}

        def follow_up(event: Any, name: str | None = None) -> None:
            event.then(self.on_follow, here, followed, api_name=name, **HIDDEN, **long)

        click = {"queue": False, "trigger_mode": "multiple", "show_progress": "hidden"}
        follow_up(
            self.edit.click(self.on_edit, [here, self.shown, *inputs], asked, api_name="edit", **HIDDEN, **click),
            "follow",
        )
        follow_up(self.fields["instruction"].submit(self.on_edit, [here, self.shown, *inputs], asked, **quick))
        follow_up(self.again.click(self.on_again, [here, self.shown, *inputs], [self.problem, *step], **quick))
        follow_up(self.edit_all.click(self.on_edit_all, [here, self.uploads, *inputs], asked, **quick))
        follow_up(self.resume.click(self.on_resume, here, [self.problem, *step], **quick))
        self.image.upload(
            self.on_bring, [here, self.image], [*step, self.problem, *brought, *filled], api_name="bring", **HIDDEN,
            show_progress="hidden", queue=False,
        )  # fmt: skip
        self.other.upload(self.on_bring, [here, self.other], [*step, self.problem, *brought, *filled], **quick)
        self.use_source.click(self.on_use_source, [here, self.digest], [*step, self.problem, *brought], **quick)
        self.undo.click(self.on_undo, here, [*step, self.problem], **quick)
        self.redo.click(self.on_redo, here, [*step, self.problem], **quick)
        self.gallery.select(self.on_choose, [here, self.order], [*step, self.problem], **quick)
        self.reuse.click(self.on_reuse, [here, self.shown], filled, **quick)
        for button in (self.cancel, self.cancel_all):
            button.click(self.on_cancel, here, None, **quick)
        self.clear.click(lambda: [None, *BOX], None, [self.mask, *self.box], **quick)
        self.dice.click(dice, None, self.fields["seed"], **quick)
        self.picker.change(self.on_pick, self.picker, self.scales, **quick)
        gr.Timer(1.0).tick(self.on_tick, None, [self.status, self.panel], **quick)
        until = gr.Timer(0.5)
        until.tick(self.on_ready, here, [until, *ready], **quick)
        self.blocks.load(self.on_tick, None, [self.status, self.panel], **quick)
        opened = self.blocks.load(self.on_open, here, [here, *step, *filled], **quick)
        opened.then(self.on_ready, here, [until, *ready], **quick)
        follow_up(opened)
        gr.api(self.device, api_name="device", queue=False)

    def values(self, given: Sequence[Any]) -> dict[str, Any]:
        """The form by its fields' names."""
        found = dict(zip(FIELDS, given, strict=False))
        rest = given[len(FIELDS) :]
        scales, mask = rest[1 : 1 + SLOTS], rest[1 + SLOTS :]
        return found | {
            "loras": rest[0] if rest else [],
            "scales": list(scales),
            "mask": mask[0] if mask else None,
            "box": list(mask[1:]) or None,
        }

    # The session

    def on_open(self, session: str | None) -> dict[Any, Any]:
        """A page was opened: its session as it was left, with the form of its last edit."""
        session = self.studio.join(session)
        steps = self.studio.sessions.steps(session)
        last = last_request(steps)
        masks = [self.studio.mask_of(step) for step in steps if step.request is not None][-1:]
        last |= {"mask": str(masks[0]) if masks and masks[0] else None} if last else {}
        return {self.session: session, **self._step(session), **(self._filled(last) if last else {})}

    def on_bring(self, session: str | None, image: str | None) -> dict[Any, Any]:
        """A picture was dropped; the settings in it go into the form."""
        try:
            brought = self.studio.bring(self.studio.join(session), image)
        except TopropeError as error:
            return {self.image: None, **self._refused(error)}
        told = {**self._step(session), **self._accepted(), self.mask: None, **dict(zip(self.box, BOX, strict=True))}
        if brought.values is None:
            return {**told, **self._noted("")}
        return {**told, **self._filled(brought.values), **self._noted(brought_html(brought), brought.source or "")}

    def on_use_source(self, session: str, digest: str) -> dict[Any, Any]:
        """The picture that the dropped one was made from, in its place."""
        try:
            self.studio.bring_kept(session, digest)
        except TopropeError as error:
            return self._refused(error)
        return {**self._step(session), **self._accepted(), **self._noted("")}

    def on_undo(self, session: str) -> dict[Any, Any]:
        """To the step before."""
        self.studio.sessions.undo(session)
        return {**self._step(session), **self._accepted()}

    def on_redo(self, session: str) -> dict[Any, Any]:
        """To the step after, of the branch that was shown last."""
        self.studio.sessions.redo(session)
        return {**self._step(session), **self._accepted()}

    def on_choose(self, session: str, order: list[int], event: gr.SelectData) -> dict[Any, Any]:
        """A step was chosen in the tree."""
        try:
            if event.index < len(order):
                self.studio.sessions.show(session, order[event.index])
        except TopropeError as error:
            return self._refused(error)
        return {**self._step(session), **self._accepted()}

    def on_reuse(self, session: str, shown: int | None) -> dict[Any, Any]:
        """The settings of the step that is shown, into the form."""
        try:
            entry = self.studio.entry(session, self.studio.sessions.step(session, int(shown or 0)))
        except TopropeError:
            return {self.picker: gr.skip()}
        return self._filled(self.studio.form_of(entry.record))

    # Edits

    async def on_edit(self, session: str, shown: int | None, *given: Any) -> dict[Any, Any]:
        """Ask for an edit of the step that is shown."""
        return await self._asked(self.studio.edit, session, self.values(given), shown)

    async def on_again(self, session: str, shown: int | None, *given: Any) -> dict[Any, Any]:
        """Ask for an edit of the step before, with the form as it is: a branch."""
        return {**await self._asked(self.studio.branch, session, self.values(given), shown), **self._step(session)}

    async def on_edit_all(self, session: str, images: list[str] | None, *given: Any) -> dict[Any, Any]:
        """Ask for an edit of several pictures."""
        return await self._asked(self.studio.edit_all, session, self.values(given), list(images or []))

    async def on_resume(self, session: str) -> dict[Any, Any]:
        """Ask again for the edits that a server did not end."""
        return {**await self._asked(self.studio.again, session), **self._step(session)}

    async def _asked(self, ask: Callable[..., Any], *arguments: Any) -> dict[Any, Any]:
        try:
            await asyncio.to_thread(ask, *arguments)
        except TopropeError as error:
            return self._refused(error)
        return self._accepted() | self._listed(arguments[0])

    async def on_follow(self, request: gr.Request, session: str) -> AsyncIterator[dict[Any, Any]]:
        """Show every step of the session's edits until none is open. Each tab has one follower."""
        tab, mine = str(request.session_hash), object()
        self._following[tab] = mine
        yield {self.progress: gr.skip()}  # a generator that yields nothing empties all its outputs
        try:
            while jobs := self.studio.desk.jobs_of(session):
                told = self._batch_progress if jobs[0].about else self._edit_progress
                async for update in told(session, jobs[0]):
                    if self._following.get(tab) is not mine:
                        return
                    yield update
        finally:
            if self._following.get(tab) is mine:
                del self._following[tab]

    async def _edit_progress(self, session: str, job: Job) -> AsyncIterator[dict[Any, Any]]:
        state = None
        async for view in follow(job):
            notes = job.result.notes if view.state is State.DONE and job.result is not None else ()
            told = {self.progress: progress_html(view, notes=notes)}
            changed, state = view.state is not state, view.state
            yield told | (self._step(session) if view.state.over else self._listed(session) if changed else {})

    async def _batch_progress(self, session: str, job: Job) -> AsyncIterator[dict[Any, Any]]:
        names, parts = [image.rsplit("/", 1)[-1] for image in job.about], -1
        async for view in follow(job):
            told: dict[Any, Any] = {self.progress_all: progress_html(view, len(names))}
            if view.parts != parts or view.state.over:
                parts = view.parts
                told[self.rows] = rows_html(job.parts[:parts], names)
            outcome: Outcome | None = job.result
            if view.state.over and outcome is not None and outcome.entries:
                shown = [(str(each.picture), each.name) for each in outcome.entries]
                told[self.results] = gr.update(value=shown, visible=True)
                told[self.packed] = gr.update(value=str(outcome.packed), visible=outcome.packed is not None)
            yield told | (self._step(session) if view.state.over else {})

    def on_cancel(self, session: str) -> None:
        """Stop what this session asked for."""
        self.studio.cancel(session)

    # The form and the device

    def on_pick(self, picked: list[str] | None) -> list[Any]:
        """A slider for each LoRA that is picked."""
        names = list(picked or [])[:SLOTS]
        return [
            gr.update(visible=at < len(names), **({"label": f"Scale of {names[at]}"} if at < len(names) else {}))
            for at in range(SLOTS)
        ]

    def on_tick(self) -> tuple[str, str]:
        """The line below the title, and the panel."""
        facts = self.studio.facts()
        return status_html(facts), panel_html(facts)

    def on_ready(self, session: str | None) -> list[Any]:
        """Once the model is there: the knobs that it has, and the timer that asked for them stops."""
        options = self.studio.options()
        if options is None:
            stop = self.studio.loader.state == "failed"
            return [gr.Timer(active=not stop), *(gr.skip() for _ in (*KNOBS, "refine"))]
        last = last_request(self.studio.sessions.steps(session)) if session else {}
        found: list[Any] = [gr.Timer(active=False)]
        for name, knob in knobs(options).items():
            told: dict[str, Any] = {"visible": knob.shown}
            value = last.get(name, knob.value)
            if value is not None:
                told["value"] = value
            if knob.most is not None:
                told["maximum"] = knob.most
            found.append(gr.update(**told))
        return [*found, gr.update(visible=self.studio.refiner() is not None)]

    def device(self) -> dict[str, Any]:
        """The model, the device and the queue."""
        return self.studio.facts()

    # Updates of a page

    def _refused(self, error: TopropeError) -> dict[Any, Any]:
        return {self.problem: gr.update(value=problem_html(Problem.of(error)), visible=True)}

    def _accepted(self) -> dict[Any, Any]:
        return {self.problem: gr.update(value="", visible=False)}

    def _noted(self, note: str, digest: str = "") -> dict[Any, Any]:
        return {
            self.note: gr.update(value=note, visible=bool(note)),
            self.digest: digest,
            self.use_source: gr.update(visible=bool(digest)),
        }

    def _filled(self, values: Mapping[str, Any]) -> dict[Any, Any]:
        """The form with these values; fields that they do not have stay as they are."""
        loras = list(zip(values.get("loras") or (), values.get("scales") or (), strict=False))[:SLOTS]
        told = {self.fields[name]: values[name] for name in FIELDS if values.get(name) is not None}
        scales = {
            slider: gr.update(value=loras[at][1], visible=True, label=f"Scale of {loras[at][0]}")
            if at < len(loras)
            else gr.update(visible=False)
            for at, slider in enumerate(self.scales)
        }
        masked = {self.mask: values.get("mask"), self.masking: gr.update(open=bool(values.get("mask")))}
        masked |= dict(zip(self.box, BOX, strict=True))
        return {**told, self.picker: [name for name, _ in loras], **scales, **masked}

    def _step(self, session: str | None) -> dict[Any, Any]:
        """The session's current step, and the tree."""
        steps, found = self.studio.sessions, self.studio.join(session)
        current = steps.current(found)
        tree = [
            (node, small) for node in nodes(steps.steps(found)) if (small := self.studio.small(node.step)) is not None
        ]
        told: dict[Any, Any] = {
            self.shown: current and current.number,
            self.order: [node.step.number for node, _ in tree],
            self.undo: gr.update(interactive=current is not None and current.parent is not None),
            self.redo: gr.update(
                interactive=current is not None and any(node.step.parent == current.number for node, _ in tree)
            ),
            self.again: gr.update(interactive=current is not None),
            self.gallery: gr.update(
                value=[(str(small), node.caption) for node, small in tree],
                visible=bool(tree),
                selected_index=next((at for at, (node, _) in enumerate(tree) if node.step == current), None),
            ),
        }
        return told | self._listed(found) | self._pictures(found, current)

    def _listed(self, session: str) -> dict[Any, Any]:
        """The session's edits without a picture: what runs and waits, and why others have none."""
        without = without_picture(self.studio.sessions.steps(session))
        return {
            self.ended: gr.update(value=ended_html(without), visible=bool(without)),
            self.resume: gr.update(visible=any(each.state is StepState.INTERRUPTED for each in without)),
        }

    def _pictures(self, session: str, current: Step | None) -> dict[Any, Any]:
        hidden = {
            each: gr.update(visible=False) for each in (self.slider, self.source, self.files, self.made, self.refined)
        }
        if current is None:
            return hidden | {self.image: gr.update(value=None, visible=True)}
        hidden |= {self.image: gr.update(value=None, visible=False)}
        try:
            if current.request is None:
                return hidden | {self.source: gr.update(value=str(self.studio.large(current)), visible=True)}
            entry = self.studio.entry(session, current)
        except TopropeError:  # its files were removed
            return hidden | {self.source: gr.update(value=None, visible=True)}
        refinement = entry.record.get("refinement")
        used = refined_text(str(entry.record["request"]["instruction"]), refinement)
        return hidden | {
            self.slider: gr.update(value=(str(entry.before), str(entry.picture)), visible=True),
            self.files: gr.update(value=[str(entry.picture), str(entry.sidecar)], visible=True),
            self.made: gr.update(visible=True),
            self.parameters: parameters_html(parameters(entry)),
            self.refined: gr.update(value=used, visible=refinement is not None),
        }


def make_app(studio: Studio) -> Any:
    """The application of Gradio for a studio, not launched yet.

    Args:
        studio: does the work; closed by whoever made it.
    """
    page = Page(studio)
    page.blocks.queue(default_concurrency_limit=None, max_size=None)
    return page.blocks
