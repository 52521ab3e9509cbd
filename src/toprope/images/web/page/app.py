"""The page, in Gradio: its components, and which of them calls what of the controller.

Imported by `web.serving` once Gradio is known to be there. Whatever decides something belongs into `web.controller`,
where tests need no browser; texts are in `web.texts`. The identifiers of components are in `page.theme` and in tests,
the order of the form is `web.form.FIELDS`; what components can do is Gradio's. Tests:
tests/images/test_images_page.py, in a browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gradio as gr
from gradio.context import LocalContext

from toprope.errors import TopropeError
from toprope.images.request import FITS, KNOBS, SIZES
from toprope.images.web import painter
from toprope.images.web.controller import Controller, Outcome
from toprope.images.web.entries import parameters
from toprope.images.web.form import FIELDS, SLIDERS, dice, knobs
from toprope.images.web.job_queue import Job, Problem, State, follow
from toprope.images.web.language import SWITCH
from toprope.images.web.page.panel import panel_html, problem_html, progress_html, status_html
from toprope.images.web.page.presets import EXAMPLES, PRESETS, example, preset
from toprope.images.web.page.tables import (
    brought_html,
    ended_html,
    parameters_html,
    queue_html,
    refined_text,
    rows_html,
)
from toprope.images.web.page.tree import last_request, nodes, without_picture
from toprope.images.web.sessions import Step, StepState
from toprope.images.web.texts import LANGUAGES, Words, words_for

__all__ = ["SLOTS", "make_app", "translations"]

SLOTS = 4
"""Largest number of LoRAs that can be selected."""

UNSEEN = 64
"""Most sessions whose edits are kept for a handler that has not begun; it may never come."""

BOX = (0, 0, 100, 100)
"""The rectangle of a mask that covers all: left, top, right, bottom in percent."""

HIDDEN: dict[str, Any] = {"api_visibility": "undocumented"}
"""Options of handlers for the page alone, whose fields have positions and no names. Programs use the HTTP API."""

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "undocumented"}
TAGS = {"en": ("en",), "zh": ("zh", "zh-CN", "zh-TW", "zh-HK")}
"""The languages of browsers in which the texts of a language are shown."""


def say(key: str) -> Any:
    """A text that the browser shows in its language, by its key in `texts.TEXTS`."""
    return gr.i18n.I18nData(key)


def _checked_later(component: Any) -> Any:
    """A number or slider whose range our own request checks: Gradio's error is English, no banner, and a traceback."""
    component.preprocess = lambda payload: payload
    return component


def translations(language: str | None) -> Any:
    """The texts for browsers: each in its own language, or all in one."""
    return gr.I18n(**{tag: Words(language or own).all for own in LANGUAGES for tag in TAGS[own]})


class EditorPage:
    """The components of the page and their handlers.

    Args:
        controller: does the work.
        language: language of the page, one of `LANGUAGES`; None for the browser's.
    """

    def __init__(self, controller: Controller, language: str | None = None) -> None:
        self.controller, self.language = controller, language
        self.fields: dict[str, Any] = {}
        self._following: dict[str, object] = {}  # by tab, a token of the handler that follows its edits
        self._unseen: dict[str, list[Job]] = {}  # by session, edits that nobody has followed yet
        with gr.Blocks(
            title=f"{controller.name} · toprope", analytics_enabled=False, delete_cache=(3600, 86400), fill_width=True
        ) as blocks:
            self.blocks = blocks
            # The value is a secret of the browser; the key only keeps it readable after a restart of the server.
            self.session = gr.BrowserState(None, storage_key="toprope-session", secret="toprope")
            self.before = gr.BrowserState(None, storage_key="toprope-session-before", secret="toprope")
            self.shown = gr.State(None)
            self.order = gr.State([])
            if language is None:
                gr.HTML(SWITCH, elem_id="languages")
            self.status = gr.HTML(status_html(controller.facts()), elem_id="status")
            with gr.Row(elem_id="editor", equal_height=False):
                with gr.Column(elem_id="left"):
                    with gr.Column(elem_id="view"), gr.Tabs():
                        with gr.Tab(say("tab_picture"), id="single"):
                            self._view()
                        with gr.Tab(say("tab_batch"), id="batch"):
                            self._batch()
                    with gr.Column(elem_id="tree"):
                        self._tree()
                with gr.Column(elem_id="right"):
                    with gr.Column(elem_id="ask"):
                        self._ask()
                        self._mask()
                    with gr.Column(elem_id="settings"):
                        self._form()
                        with gr.Accordion(say("facts"), open=False, elem_id="facts"):
                            self.panel = gr.HTML(panel_html(controller.facts()), elem_id="panel")
            self._wire()

    # Components

    def _view(self) -> None:
        """The picture of the current step: input, comparison, and the buttons below it."""
        self.image = gr.Image(
            type="filepath", image_mode=None, label=say("picture"), sources=["upload", "clipboard"], height=420,
            buttons=[], elem_id="picture",
        )  # fmt: skip
        # The path alone: the engine opens pictures itself, and says what is wrong with one.
        self.image.preprocess = lambda payload: payload.path if payload is not None else None
        self.source = gr.Image(
            type="filepath",
            label=say("picture"),
            interactive=False,
            visible=False,
            elem_id="source",
            buttons=["fullscreen"],
        )
        self.slider = gr.ImageSlider(
            type="filepath", label="", interactive=False, visible=False, elem_id="slider",
            buttons=["fullscreen"],
        )  # fmt: skip
        with gr.Row(elem_classes="tools"):
            self.undo = gr.Button(say("undo"), elem_id="undo", size="sm", min_width=80, interactive=False)
            self.redo = gr.Button(say("redo"), elem_id="redo", size="sm", min_width=80, interactive=False)
            self.other = gr.UploadButton(
                say("other"), elem_id="other", size="sm", min_width=80, file_types=["image"], type="filepath"
            )
            self.fresh = gr.Button(say("fresh"), elem_id="fresh", size="sm", min_width=80)
            self.back = gr.Button(say("back"), elem_id="back", size="sm", min_width=80, visible=False)
        self.note = gr.HTML("", elem_id="note", visible=False)
        self.digest = gr.State("")
        self.use_source = gr.Button(say("use_source"), elem_id="use-source", size="sm", visible=False)

    def _ask(self) -> None:
        """The instruction with its buttons, examples, progress and errors."""
        self.fields["instruction"] = gr.Textbox(
            label=say("instruction"), placeholder=say("placeholder"), lines=2, max_lines=6, elem_id="instruction"
        )
        with gr.Row():
            self.edit = gr.Button(say("edit"), variant="primary", elem_id="edit", min_width=80)
            self.again = gr.Button(say("again"), elem_id="again", min_width=80, interactive=False)
            self.cancel = gr.Button(say("cancel"), elem_id="cancel", min_width=80)
        with gr.Row(elem_classes="tools choices", elem_id="examples"):
            gr.Markdown(say("examples"), elem_classes="choices-label")
            self.examples = {
                name: gr.Button(say(f"example_{name}"), elem_id=f"example-{name}", size="sm", min_width=60)
                for name in EXAMPLES
            }
        self.hint = gr.HTML("", elem_id="hint", visible=False)
        self.problem = gr.HTML("", elem_id="problem", visible=False)
        self.progress = gr.HTML(progress_html(None), elem_id="progress")
        self.queue = gr.HTML("", elem_id="queue", visible=False)
        self.refined = gr.Textbox(label=say("refined"), visible=False, interactive=False, elem_id="refined")

    def _mask(self) -> None:
        """The three ways to say which part may change: paint, rectangle, file."""
        with gr.Accordion(say("masking"), open=False, elem_id="masking") as self.masking:
            self.painted = gr.HTML(
                "", html_template=painter.HTML, css_template=painter.CSS, js_on_load=painter.script(self.language),
                picture="", elem_id="painter",
            )  # fmt: skip
            with gr.Row():
                self.box = [
                    _checked_later(gr.Number(value, label=say(side), min_width=50, elem_id=f"box-{side}"))
                    for side, value in zip(("left", "top", "right", "bottom"), BOX, strict=True)
                ]
            self.mask = gr.Image(
                type="filepath", image_mode=None, label=say("mask"),
                sources=["upload"], height=160, buttons=[], elem_id="mask",
            )  # fmt: skip
            self.mask.preprocess = lambda payload: payload.path if payload is not None else None
            self.clear = gr.Button(say("clear_mask"), elem_id="clear-mask", size="sm")

    def _form(self) -> None:
        """The model's knobs, the seed, LoRAs and further settings."""
        fields = self.fields
        with gr.Row(elem_classes="tools choices", elem_id="presets"):
            gr.Markdown(say("preset"), elem_classes="choices-label")
            self.presets = {
                name: gr.Button(say(f"preset_{name}"), elem_id=f"preset-{name}", size="sm", min_width=60)
                for name in PRESETS
            }
        fields["refine"] = gr.Checkbox(label=say("refine"), value=True, visible=False, elem_id="refine")
        with gr.Row(elem_classes="seed"):
            fields["seed"] = gr.Textbox(
                label=say("seed"), placeholder=say("seed_any"), elem_id="seed", scale=4, max_lines=1
            )
            self.dice = gr.Button(say("dice"), elem_id="dice", scale=1, min_width=92, size="sm")
        for pair in (("steps", "refine_strength"), ("guidance", "image_guidance")):
            with gr.Row():
                for name in pair:
                    least, most, step = SLIDERS[name]
                    slider = gr.Slider(
                        least, most, step=step, label=say(name), visible=False, elem_id=name,
                        min_width=180, buttons=[],
                    )  # fmt: skip
                    fields[name] = _checked_later(slider)
        with gr.Accordion(say("loras"), open=True, visible=bool(self.controller.loras)):
            self.picker = gr.Dropdown(
                sorted(self.controller.loras), value=[], multiselect=True, max_choices=SLOTS, label=say("loras_add"),
                elem_id="loras",
            )  # fmt: skip
            self.scales = [
                _checked_later(
                    gr.Slider(0, 2, value=1, step=0.05, label=f"{at + 1}", visible=False, elem_id=f"scale-{at + 1}")
                )
                for at in range(SLOTS)
            ]
        with gr.Accordion(say("more"), open=False):
            fields["negative"] = gr.Textbox(label=say("negative"), visible=False, elem_id="negative")
            fields["cfg_norm"] = gr.Checkbox(label=say("cfg_norm"), visible=False, elem_id="cfg_norm")
            fields["num_images"] = _checked_later(gr.Slider(1, 4, value=1, step=1, label=say("num_images")))
            fields["size"] = gr.Dropdown(list(SIZES), value="model", label=say("resolution"))
            fields["fit"] = gr.Dropdown(list(FITS), value="stretch", label=say("fit"))

    def _batch(self) -> None:
        """The tab for several pictures: uploads, progress, results, ZIP."""
        self.uploads = gr.File(
            file_count="multiple", file_types=["image"], label=say("uploads"),
            height=150, elem_id="uploads",
        )  # fmt: skip
        with gr.Row():
            self.edit_all = gr.Button(say("edit_all"), variant="primary", elem_id="edit-all")
            self.cancel_all = gr.Button(say("cancel"), elem_id="cancel-all")
        self.progress_all = gr.HTML(progress_html(None), elem_id="progress-all")
        self.rows = gr.HTML("", elem_id="rows")
        self.results = gr.Gallery(
            label=say("results"), show_label=False, columns=4, height=260, visible=False, elem_id="results"
        )
        self.packed = gr.File(label=say("packed"), visible=False, interactive=False, elem_id="packed")

    def _tree(self) -> None:
        """The thumbnails of the session's steps, and the files and settings of the one that is shown."""
        self.gallery = gr.Gallery(
            label=say("tree"), show_label=False, columns=6, height="auto", allow_preview=False,
            visible=False, elem_id="gallery", buttons=[],
        )  # fmt: skip
        self.ended = gr.HTML("", elem_id="ended", visible=False)
        self.resume = gr.Button(say("resume"), elem_id="resume", size="sm", visible=False)
        self.files = gr.File(label=say("files"), visible=False, interactive=False, elem_id="files")
        with gr.Accordion(say("made"), open=False, visible=False, elem_id="made") as self.made:
            self.parameters = gr.HTML(parameters_html(None), elem_id="parameters")
            self.reuse = gr.Button(say("reuse"), elem_id="reuse", size="sm")

    # Events

    def _wire(self) -> None:
        """Connect components with their handlers."""
        masks = [self.mask, self.painted, *self.box]
        inputs = [
            *(self.fields[name] for name in FIELDS),
            self.picker,
            *self.scales,
            *masks,
        ]
        asked = [self.problem, self.ended, self.resume, self.progress]
        step = [
            self.shown, self.order, self.image, self.source, self.slider, self.undo, self.redo, self.again,
            self.gallery, self.ended, self.resume, self.files, self.made, self.parameters, self.refined, self.painted,
        ]  # fmt: skip
        brought = [self.note, self.digest, self.use_source]
        batch = [self.progress_all, self.rows, self.results, self.packed]
        followed = [self.progress, *batch, *step]
        filled = [*inputs, self.masking]
        whole = [*(each for each in step if each not in filled), *filled]
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
        follow_up(
            self.again.click(self.on_again, [here, self.shown, *inputs], [*asked[3:], self.problem, *step], **quick)
        )
        follow_up(self.edit_all.click(self.on_edit_all, [here, self.uploads, *inputs], asked, **quick))
        follow_up(self.resume.click(self.on_resume, here, [*asked[3:], self.problem, *step], **quick))
        everything = [*whole, self.problem, self.progress, *brought]
        self.image.upload(
            self.on_bring,
            [here, self.image],
            everything,
            api_name="bring",
            show_progress="hidden",
            queue=False,
            **HIDDEN,
        )
        self.other.upload(self.on_bring, [here, self.other], everything, **quick)
        self.use_source.click(self.on_use_source, [here, self.digest], [*step, self.problem, *brought], **quick)
        self.undo.click(self.on_undo, here, [*step, self.problem], **quick)
        self.redo.click(self.on_redo, here, [*step, self.problem], **quick)
        sessions = [here, self.before, self.back]
        renewed = [*sessions, *everything, *batch, self.uploads]
        self.fresh.click(self.on_fresh, [here, self.before], renewed, **quick)
        follow_up(self.back.click(self.on_back, [here, self.before], renewed, **quick))
        self.gallery.select(self.on_choose, [here, self.order], [*step, self.problem], **quick)
        self.reuse.click(self.on_reuse, [here, self.shown], filled, **quick)
        for button in (self.cancel, self.cancel_all):
            button.click(self.on_cancel, here, None, **quick)
        # A picture that was set while the painter was not drawn yet is lost on it.
        self.masking.expand(self.on_expand, here, self.painted, **quick)
        self.clear.click(lambda: self._masked({}), None, masks, **quick)
        self.dice.click(dice, None, self.fields["seed"], **quick)
        self.picker.change(self.on_pick, self.picker, self.scales, **quick)
        knobs_shown = [self.fields[name] for name in KNOBS]
        for name, button in self.presets.items():
            button.click(partial(self.on_preset, name), None, knobs_shown, **quick)
        for name, button in self.examples.items():
            shown = [*step, *knobs_shown, self.fields["instruction"], self.hint, self.problem]
            button.click(partial(self.on_example, name), here, shown, **quick)
        state = [self.status, self.panel, self.queue]
        gr.Timer(1.0).tick(self.on_tick, here, state, **quick)
        until = gr.Timer(0.5)
        until.tick(self.on_ready, here, [until, *ready], **quick)
        self.blocks.load(self.on_tick, here, state, **quick)
        opened = self.blocks.load(self.on_open, [here, self.before], [*sessions, *whole], **quick)
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
            "painted": mask[1] if mask else None,
            "box": list(mask[2:]) or None,
        }

    def words(self) -> Words:
        """The texts in the language of the browser that the handler of this thread or task answers."""
        request = LocalContext.request.get(None)
        return words_for(None if request is None else request.headers.get("accept-language"), self.language)

    # The session

    def on_open(self, session: str | None, before: str | None = None) -> dict[Any, Any]:
        """Show the session of a page that was opened, with the form of its last edit."""
        session = self.controller.join(session)
        steps = self.controller.sessions.steps(session)
        last = last_request(steps)
        masks = [self.controller.mask_of(step) for step in steps if step.request is not None][-1:]
        last |= {"mask": str(masks[0]) if masks and masks[0] else None} if last else {}
        told = {self.session: session, self.back: gr.update(visible=bool(before)), **self._step(session)}
        return self._filled(last, told) if last else told

    def on_bring(self, session: str | None, image: str | None) -> dict[Any, Any]:
        """Add a dropped picture, and fill the form with the settings in it."""
        try:
            brought = self.controller.bring(self.controller.join(session), image)
        except TopropeError as error:
            return {self.image: None, **self._refused(error), **self._settled(session)}
        told = self._step(session) | self._accepted() | self._settled(session)
        if brought.values is None:
            return self._masked(told) | self._noted("")
        told = self._filled(brought.values, told)
        return told | self._noted(brought_html(brought, self.words()), brought.source or "")

    def on_use_source(self, session: str, digest: str) -> dict[Any, Any]:
        """Replace the dropped picture by the one that it was made from."""
        try:
            self.controller.bring_kept(session, digest)
        except TopropeError as error:
            return self._refused(error)
        return {**self._step(session), **self._accepted(), **self._noted("")}

    def on_undo(self, session: str) -> dict[Any, Any]:
        """Go to the step before."""
        self.controller.sessions.undo(session)
        return {**self._step(session), **self._accepted()}

    def on_redo(self, session: str) -> dict[Any, Any]:
        """Go to the next step of the branch that was shown last."""
        self.controller.sessions.redo(session)
        return {**self._step(session), **self._accepted()}

    def on_fresh(self, request: gr.Request, session: str, before: str | None) -> dict[Any, Any]:
        """A new session in the place of this one, whose edits go on. The form stays, without the mask."""
        current = self.controller.sessions.current(self.controller.join(session))
        if current is not None:  # an empty one is as good as a new one
            before, session = session, self.controller.join()
        return self._renewed(request, session, before)

    def on_back(self, request: gr.Request, session: str, before: str | None) -> dict[Any, Any]:
        """The session before the new one, and this one in its place."""
        return self._renewed(request, self.controller.join(before), session)

    def _renewed(self, request: gr.Request, session: str, before: str | None) -> dict[Any, Any]:
        """Show another session; nothing of the one before stays on the page but the form."""
        self._following.pop(str(request.session_hash), None)
        nothing = {self.rows: "", self.uploads: None, self.progress_all: progress_html(None)}
        hidden = dict.fromkeys((self.results, self.packed), gr.update(value=None, visible=False))
        sessions = {self.session: session, self.before: before, self.back: gr.update(visible=bool(before))}
        told = self._masked(self._step(session)) | self._accepted() | self._settled(session) | self._noted("")
        return told | sessions | nothing | hidden

    def on_expand(self, session: str | None) -> Any:
        """The picture that is shown, for the painter that has just been drawn."""
        current = self.controller.sessions.current(self.controller.join(session))
        return self._pictures(str(session), current).get(self.painted, gr.skip())

    def on_choose(self, session: str, order: list[int], event: gr.SelectData) -> dict[Any, Any]:
        """Show the step that was chosen in the tree."""
        try:
            if event.index < len(order):
                self.controller.sessions.show(session, order[event.index])
        except TopropeError as error:
            return self._refused(error)
        return {**self._step(session), **self._accepted()}

    def on_reuse(self, session: str, shown: int | None) -> dict[Any, Any]:
        """Fill the form with the settings of the step that is shown."""
        try:
            entry = self.controller.entry(session, self.controller.sessions.step(session, int(shown or 0)))
        except TopropeError:
            return {self.picker: gr.skip()}
        return self._filled(self.controller.form_of(entry.record), {})

    # Edits

    async def on_edit(self, session: str, shown: int | None, *given: Any) -> dict[Any, Any]:
        """Request an edit of the step that is shown."""
        return await self._asked(self.controller.edit, session, self.values(given), shown)

    async def on_again(self, session: str, shown: int | None, *given: Any) -> dict[Any, Any]:
        """Request an edit of the step before with the current form, which makes a branch."""
        return {**await self._asked(self.controller.branch, session, self.values(given), shown), **self._step(session)}

    async def on_edit_all(self, session: str, images: list[str] | None, *given: Any) -> dict[Any, Any]:
        """Request an edit of several pictures."""
        return await self._asked(self.controller.edit_all, session, self.values(given), list(images or []))

    async def on_resume(self, session: str) -> dict[Any, Any]:
        """Request the interrupted edits again."""
        return {**await self._asked(self.controller.again, session), **self._step(session)}

    async def _asked(self, ask: Callable[..., Any], *arguments: Any) -> dict[Any, Any]:
        try:
            jobs = await asyncio.to_thread(ask, *arguments)
            self._unseen.setdefault(arguments[0], []).extend([jobs] if isinstance(jobs, Job) else jobs)
            if len(self._unseen) > UNSEEN:
                del self._unseen[next(iter(self._unseen))]
        except TopropeError as error:
            return self._refused(error) | self._settled(arguments[0])
        return self._accepted() | self._listed(arguments[0])

    async def on_follow(self, request: gr.Request, session: str) -> AsyncIterator[dict[Any, Any]]:
        """Show every step of the session's edits until all have ended. Each tab has one such handler."""
        tab, mine = str(request.session_hash), object()
        self._following[tab] = mine
        yield {self.progress: gr.skip()}  # a generator that yields nothing empties all its outputs
        try:
            # An edit that fails at once is over before this handler begins: its end is shown all the same.
            unseen = self._unseen.pop(session, [])
            while jobs := self.controller.job_queue.jobs_of(session) or unseen:
                unseen = [job for job in unseen if job is not jobs[0]]
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
            told = {self.progress: progress_html(view, notes=notes, words=self.words())}
            changed, state = view.state is not state, view.state
            yield told | (self._step(session) if view.state.over else self._listed(session) if changed else {})

    async def _batch_progress(self, session: str, job: Job) -> AsyncIterator[dict[Any, Any]]:
        """Yield updates of the batch's tab until its job has ended."""
        names, shown = [image.rsplit("/", 1)[-1] for image in job.about], None
        async for view in follow(job):
            told: dict[Any, Any] = {self.progress_all: progress_html(view, len(names), words=self.words())}
            if (view.parts, view.running, view.state) != shown:
                shown = view.parts, view.running, view.state
                told[self.rows] = rows_html(job.parts[: view.parts], names, self.words(), view.state, view.running)
            outcome: Outcome | None = job.result
            if view.state.over and outcome is not None and outcome.entries:
                made = [(str(each.picture), each.name) for each in outcome.entries]
                told[self.results] = gr.update(value=made, visible=True)
                told[self.packed] = gr.update(value=str(outcome.packed), visible=outcome.packed is not None)
            yield told | (self._step(session) if view.state.over else {})

    def on_cancel(self, session: str) -> None:
        """Stop all edits of this session."""
        self.controller.cancel(session)

    # The form and the device

    def on_pick(self, picked: list[str] | None) -> list[Any]:
        """Show a slider for each selected LoRA."""
        names, words = list(picked or [])[:SLOTS], self.words()
        labels = [words("scale", name=name) for name in names]
        return [
            gr.update(visible=at < len(names), **({"label": labels[at]} if at < len(names) else {}))
            for at in range(SLOTS)
        ]

    def on_preset(self, name: str) -> list[Any]:
        """Fill the form with the values of a preset."""
        values = preset(name, self.controller.options() or {})
        return [values.get(knob, gr.skip()) for knob in KNOBS]

    def on_example(self, name: str, session: str | None) -> dict[Any, Any]:
        """Fill the form with an example and a hint; adds an example picture if there is none."""
        shown = example(name, self.controller.family(), self.controller.options() or {})
        found = self.controller.join(session)
        told: dict[Any, Any] = {self.fields[knob]: value for knob, value in shown.values.items()}
        if self.controller.sessions.current(found) is None:
            self.controller.bring_example(found)
            told |= self._step(found)
        hint = f'<div class="hint" role="status">{self.words()(shown.hint)}</div>'
        told |= {self.fields["instruction"]: shown.instruction, self.hint: gr.update(value=hint, visible=True)}
        return told | self._accepted()

    def on_tick(self, session: str | None) -> tuple[str, str, Any]:
        """Update the line below the title, the panel, and the queue."""
        facts, words = self.controller.facts(), self.words()
        queue = queue_html(self.controller.places(session), words)
        return status_html(facts, words), panel_html(facts, words), gr.update(value=queue, visible=bool(queue))

    def on_ready(self, session: str | None) -> list[Any]:
        """Show the model's knobs once it is loaded, and stop the timer that waits for it."""
        options = self.controller.options()
        if options is None:
            stop = self.controller.loader.state == "failed"
            return [gr.Timer(active=not stop), *(gr.skip() for _ in (*KNOBS, "refine"))]
        last = last_request(self.controller.sessions.steps(session)) if session else {}
        found: list[Any] = [gr.Timer(active=False)]
        for name, knob in knobs(options).items():
            told: dict[str, Any] = {"visible": knob.shown}
            value = last.get(name, knob.value)
            if value is not None:
                told["value"] = value
            if knob.most is not None:
                told["maximum"] = knob.most
            found.append(gr.update(**told))
        return [*found, gr.update(visible=self.controller.refiner() is not None)]

    def device(self) -> dict[str, Any]:
        """The model, the device and the queue."""
        return self.controller.facts()

    # Updates of a page

    def _refused(self, error: TopropeError) -> dict[Any, Any]:
        return {self.problem: gr.update(value=problem_html(Problem.of(error), self.words()), visible=True)}

    def _accepted(self) -> dict[Any, Any]:
        return {self.problem: gr.update(value="", visible=False)}

    def _settled(self, session: str | None) -> dict[Any, Any]:
        """Take away the end of an earlier edit, which is about another picture; an edit that runs keeps its bar."""
        running = bool(session and self.controller.job_queue.jobs_of(session))
        return {} if running else {self.progress: progress_html(None)}

    def _noted(self, note: str, digest: str = "") -> dict[Any, Any]:
        return {
            self.note: gr.update(value=note, visible=bool(note)),
            self.digest: digest,
            self.use_source: gr.update(visible=bool(digest)),
        }

    def _masked(self, told: dict[Any, Any], mask: str | None = None) -> dict[Any, Any]:
        """Add updates of the mask: a file, or none; the painted mask and the rectangle are cleared."""
        painted = told.get(self.painted, gr.update()) | {"value": ""}
        return {**told, self.mask: mask, self.painted: painted, **dict(zip(self.box, BOX, strict=True))}

    def _filled(self, values: Mapping[str, Any], others: Mapping[Any, Any]) -> dict[Any, Any]:
        """Add updates of the form for these values; other fields stay."""
        words = self.words()
        loras = list(zip(values.get("loras") or (), values.get("scales") or (), strict=False))[:SLOTS]
        told = {self.fields[name]: values[name] for name in FIELDS if values.get(name) is not None}
        scales = {
            slider: gr.update(value=loras[at][1], visible=True, label=words("scale", name=loras[at][0]))
            if at < len(loras)
            else gr.update(visible=False)
            for at, slider in enumerate(self.scales)
        }
        told |= {self.masking: gr.update(open=bool(values.get("mask"))), self.picker: [name for name, _ in loras]}
        return self._masked({**others, **told, **scales}, values.get("mask"))

    def _step(self, session: str | None) -> dict[Any, Any]:
        """Updates of the session's current step and the tree."""
        steps, found = self.controller.sessions, self.controller.join(session)
        current = steps.current(found)
        tree = [
            (node, small)
            for node in nodes(steps.steps(found), self.words()("seed_short"))
            if (small := self.controller.small(node.step)) is not None
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
        """Updates of the list of edits without a picture: running, waiting and failed ones."""
        without = without_picture(self.controller.sessions.steps(session))
        return {
            self.ended: gr.update(value=ended_html(without, self.words()), visible=bool(without)),
            self.resume: gr.update(visible=any(each.state is StepState.INTERRUPTED for each in without)),
        }

    def _pictures(self, session: str, current: Step | None) -> dict[Any, Any]:
        """Updates that show a step: its picture, or before and after with its files and settings."""
        hidden = {
            each: gr.update(visible=False) for each in (self.slider, self.source, self.files, self.made, self.refined)
        }
        if current is None:
            return hidden | {self.image: gr.update(value=None, visible=True), self.painted: gr.update(picture="")}
        hidden |= {self.image: gr.update(value=None, visible=False)}
        try:
            hidden[self.painted] = gr.update(picture=painter.shown_copy(self.controller.large(current)))
            if current.request is None:
                return hidden | {self.source: gr.update(value=str(self.controller.large(current)), visible=True)}
            entry = self.controller.entry(session, current)
        except TopropeError:  # its files were removed
            return hidden | {self.source: gr.update(value=None, visible=True)}
        refinement = entry.record.get("refinement")
        used = refined_text(str(entry.record["request"]["instruction"]), refinement, self.words())
        return hidden | {
            # its label is not translated by Gradio 6.31
            self.slider: gr.update(
                value=(str(entry.before), str(entry.picture)), visible=True, label=self.words()("slider")
            ),
            self.files: gr.update(value=[str(entry.picture), str(entry.sidecar)], visible=True),
            self.made: gr.update(visible=True),
            self.parameters: parameters_html(parameters(entry), self.words()),
            self.refined: gr.update(value=used, visible=refinement is not None),
        }


def make_app(controller: Controller, language: str | None = None) -> Any:
    """Make the Gradio application for a controller, without launching it.

    Args:
        controller: does the work; its owner closes it.
        language: language of the page, one of `LANGUAGES`; None for the browser's.
    """
    page = EditorPage(controller, language)
    page.blocks.queue(default_concurrency_limit=None, max_size=None)
    return page.blocks
