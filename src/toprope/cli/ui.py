"""`toprope ui`: a page in the browser that edits pictures by instruction.

Options and the start of the server; the work is `images.web`, the users' page docs/images.md. The page is served before
the model is loaded, and a folder that is no model is an error before either. Tests: tests/images/test_images_web.py for
the command line, tests/images/test_images_web_cards.py for --cards.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toprope.cli.group import verb
from toprope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from toprope.images.engine import Engine

__all__ = ["app", "known_loras"]

app = verb()


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def ui(
    model: Annotated[Path, typer.Option(metavar="DIR", help="The folder that a pipeline was saved to.")],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on. The default is local to this machine.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 7860,
    device: Annotated[str, typer.Option(metavar="NAME", help="Such as npu:1, cuda, cpu. [default: the best]")] = "",
    dtype: Annotated[str, typer.Option(metavar="NAME", help="auto, bf16, fp16 or fp32.")] = "auto",
    memory: Annotated[str, typer.Option(metavar="RUNG", help="A rung of the memory ladder, or auto.")] = "auto",
    lora: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A LoRA to choose from: a file, or a folder of them. May be repeated."),
    ] = None,
    attention: Annotated[
        str, typer.Option(metavar="NAME", help="auto: the NPU's fused operator if there is one; torch: torch's own.")
    ] = "auto",
    refiner: Annotated[
        str, typer.Option(metavar="WHO", help="Model that rewrites instructions: openai:URL, local:DIR or none.")
    ] = "none",
    host_operators: Annotated[
        bool,
        typer.Option("--host-operators", help="Run operators that the device refuses on the host, with a warning."),
    ] = False,
    out_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep results and sessions here. [default: deleted when the server stops]"),
    ] = None,
    cards: Annotated[int, typer.Option(metavar="N", min=1, help="Spread the pictures of a batch over N cards.")] = 1,
    max_upload: Annotated[str, typer.Option(metavar="SIZE", help="Largest file.")] = "32MiB",
    max_files: Annotated[int, typer.Option(metavar="N", min=1, help="Largest number of files in one batch.")] = 64,
    max_waiting: Annotated[int, typer.Option(metavar="N", min=1, help="Largest number of waiting edits.")] = 32,
    max_uploads: Annotated[
        int, typer.Option(metavar="N", min=1, help="Largest number of uploaded files that are kept.")
    ] = 256,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name of the server, such as a proxy's. May be repeated."),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
) -> None:
    """Serve a page that edits pictures: one or many at a time, with a tree of steps, progress and the device's state.

    The model loads while the page is served already. Ctrl-C stops after the step that runs.
    More: toprope explain images.
    """
    from toprope.cli.libraries import quiet_libraries
    from toprope.images.families import find
    from toprope.images.web import Controller, Limits, serve
    from toprope.images.web.serving import is_local
    from toprope.settings import Settings
    from toprope.sizes import parse_size

    quiet_libraries()
    limits = Limits(
        upload=parse_size(max_upload), files=max_files, waiting=max_waiting, uploads=max(max_uploads, 2 * max_files)
    )
    loras = known_loras(lora or [])
    lang = Settings.load().lang
    find(model)  # a folder that is no model is an error now, and not on the page
    openers = [
        _opener(
            model, device=each, dtype=dtype, memory=memory, refiner=refiner, host_operators=host_operators,
            attention=attention,
        )
        for each in _devices(cards, device or None)
    ]  # fmt: skip
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    # From here on Ctrl-C ends the wait below, whatever is going on.
    controller = Controller(
        model.resolve().name, openers[0], others=openers[1:], out_dir=out_dir, loras=loras, limits=limits
    )
    try:
        served = serve(
            controller, host=host, port=port, open_browser=open_browser, allow_hosts=allow_host or [],
            language=None if lang == "auto" else lang,
        )  # fmt: skip
        controller.load()  # after the page is there: both are mostly imports, which do not go side by side
        _say(f"{served.url}  (Ctrl-C stops it)")
        if not is_local(host):
            _say("everybody who can reach this address can use the page: it asks for no password.")
        said = False
        while not stop.wait(0.2):
            if not said and controller.loader.state != "loading":
                said = True
                _say(_loaded(controller.facts()))
        _say("stopping after the step that runs")
        served.stop()
    finally:
        ended = controller.close()
    kept = f"; results are in {out_dir}" if out_dir is not None else ""
    _say(f"stopped{kept}" if ended else "stopped while an edit was still running")


def known_loras(given: list[str]) -> dict[str, str]:
    """Paths of LoRAs by the name that the page shows: files, and those in folders.

    Raises:
        UsageError: a path is not there, a folder has none, or two have one name.
    """
    found: dict[str, str] = {}
    for each in given:
        path = Path(each)
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files or not all(file.is_file() for file in files):
            raise UsageError(
                f"there is no LoRA in {each}.",
                looked_at=each,
                do="name a .safetensors file or a folder; scales are chosen on the page",
            )
        for file in files:
            # these are what everybody's file is called
            name = file.resolve().parent.name if file.stem in ("pytorch_lora_weights", "adapter_model") else file.stem
            if found.setdefault(name, str(file)) != str(file):
                raise UsageError(
                    f"two LoRAs are called {name}.", f"{found[name]}, {file}", "give one of them another name"
                )
    return found


def _devices(cards: int, device: str | None) -> list[str | None]:
    """The device of each engine.

    Raises:
        UsageError: there are fewer cards, or the device is one of them.
    """
    if cards == 1:
        return [device]
    from toprope.images.runs.cards import check_cards, kind_of

    kind = kind_of(check_cards(cards, device))
    return [f"{kind}:{index}" for index in range(cards)]


def _opener(model: Path, **options: Any) -> Callable[[Callable[[str], None]], Engine]:
    def open_engine(tell: Callable[[str], None]) -> Engine:
        from toprope.images.engine import Engine

        return Engine.open(model, progress=tell, **options)

    return open_engine


def _loaded(facts: dict[str, Any]) -> str:
    from toprope.cli.editing.console import failure_text

    model = facts["model"]
    if model["problem"] is None:
        return f"{model['name']} is ready on {facts.get('device')} in {model['seconds']:.0f} s"
    problem = model["problem"]
    return failure_text(f"the model could not be loaded: {problem['what']}", problem)


def _say(text: str) -> None:
    sys.stderr.write(f"toprope: {text}\n")
    sys.stderr.flush()
