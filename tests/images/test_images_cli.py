"""`toprope edit` and `toprope images`: a batch with a corrupt picture, --resume, --repeat, Ctrl-C, and the output.

Holds `cli.edit`, `cli.editing` and `images.runs`.
"""

import io
import json
import os
import pty
import re
import shlex
import signal
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer
from PIL import Image

from images_loras import save, tensors
from images_tiny import QUIET, picture, tiny
from toprope.cli import main
from toprope.cli.edit import app as edit
from toprope.cli.editing.console import Console
from toprope.images import EditRequest, Engine, Step
from toprope.images.example import picture as example
from toprope.images.memory.fallback import RUNGS
from toprope.images.refining.prompt_templates import template
from toprope.images.runs.jobs import Job
from toprope.images.runs.output import SOURCES
from toprope.images.runs.running import Event

pytestmark = [*QUIET, pytest.mark.usefixtures("ctrl_c_heeded")]
FAST = ("--steps", "2", "--max-pixels", "256", "--device", "cpu")
SNOW = ("--instruction", "make it snow")


@pytest.fixture
def model() -> str:
    return str(tiny("ip2p"))


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with four pictures and one that is none."""
    monkeypatch.chdir(tmp_path)
    for name in ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY"):
        monkeypatch.setenv(name, "error")
    for number in range(4):
        picture(40, 30, shift=40 * number).save(f"good{number}.png")
    (tmp_path / "bad.png").write_bytes(Path("good0.png").read_bytes()[:60])
    return tmp_path


@pytest.fixture
def toprope(capsys):
    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()  # what libraries said about themselves when the model was made
        status = main(list(words))
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err
        return status, seen.out, seen.err

    return call


def results(folder="out") -> list[str]:
    return sorted(name for name in os.listdir(folder) if name != SOURCES)


def sidecar(name) -> dict:
    return json.loads(Path(name).read_text())


# ---- one picture


@pytest.mark.slow
def test_a_picture_and_the_record_that_repeats_it(toprope, model, monkeypatch) -> None:
    status, out, err = toprope("edit", "--model", model, "--image", "good1.png", *SNOW, *FAST)
    assert (status, err) == (0, "")
    assert out == "wrote out/good1-0001.png (and out/good1-0001.json: everything needed to repeat it)\n"
    told = sidecar("out/good1-0001.json")
    assert (told["request"]["steps"], told["request"]["instruction"]) == (2, "make it snow")
    assert told["seed"] == told["request"]["seed"] == told["seeds"][0]
    assert told["source"]["name"] == told["request"]["image"] == os.path.abspath("good1.png")
    # from another folder, with nothing said but the record
    os.mkdir("elsewhere")
    monkeypatch.chdir("elsewhere")
    status, out, err = toprope("edit", "--repeat", "../out/good1-0001.json", "--quiet")
    assert (status, out, err) == (0, "out/good1-0001.png\n", "")
    assert Path(out.strip()).read_bytes() == Path("../out/good1-0001.png").read_bytes()
    # where the source lies elsewhere, the copy that was kept is taken
    os.rename("../good1.png", "../moved.png")
    status, out, err = toprope("edit", "--repeat", "../out/good1-0001.json")
    assert (status, out.split()[1]) == (0, "out/good1-0002.png")
    assert re.search(
        r"toprope: \S+good1\.png is gone or was changed: the copy of it that was kept, \S+, is edited", err
    )
    assert Path("out/good1-0002.png").read_bytes() == Path("../out/good1-0001.png").read_bytes()
    # or, where it was not kept, it is named
    os.rename("../out/sources", "../out/gone")
    status, out, err = toprope("edit", "--repeat", "../out/good1-0001.json")
    assert (status, out) == (2, "")
    assert re.search(r"the picture of the record, \S+good1\.png, is not there", err)
    status, out, err = toprope("edit", "--repeat", "../out/good1-0001.json", "--image", "../moved.png", "--quiet")
    assert (status, out, err) == (0, "out/moved-0001.png\n", "")
    assert Path(out.strip()).read_bytes() == Path("../out/good1-0001.png").read_bytes()
    # what is otherwise is said
    Image.new("RGB", (40, 30), (9, 90, 200)).save("../good1.png")
    status, out, err = toprope("edit", "--repeat", "../out/good1-0001.json", "--steps", "1")
    assert status == 0
    assert re.search(r"toprope: \S+good1\.png is not the picture of the record, or was changed\n", err)


@pytest.mark.slow
def test_several_pictures_of_one_edit_at_once(toprope, model) -> None:
    words = ("edit", "--model", model, "--image", "good1.png", *SNOW, *FAST, "--seed", "7", "--num-images", "2")
    status, out, _ = toprope(*words, "--at-once", "2", "--format", "webp", "--json")
    told = json.loads(out)
    assert status == 0
    assert told["pictures"] == ["out/good1-0001.webp", "out/good1-0002.webp"]
    assert told["sidecars"] == ["out/good1-0001.json", "out/good1-0002.json"]
    assert [sidecar(name)["seed"] for name in told["sidecars"]] == [7, 8]
    assert (told["job"], told["error"]) == (1, None)


# ---- 28


@pytest.mark.slow
def test_28_a_corrupt_picture_fails_alone_and_resume_does_only_that_one(toprope, model, monkeypatch) -> None:
    names = ["good0.png", "good1.png", "bad.png", "good2.png", "good3.png"]
    rows = [{"image": name, "instruction": "make it snow", "seed": 3} for name in names]
    Path("jobs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("edit", "--model", model, "--jobs", "jobs.jsonl", *FAST)
    status, out, err = toprope(*words)
    assert status == 1
    assert out.count("wrote ") == 4
    assert re.search(r"toprope: bad\.png \(jobs\.jsonl, line 3\) failed: \S+bad\.png cannot be read as a picture", err)
    again = "out/*.failed.json say why, and --resume tries those again"
    assert err.endswith(f"toprope: 4 of 5 done, 1 failed; results are in out; {again}\n")
    done = [f"good{number}-0001.{ending}" for number in range(4) for ending in ("json", "png")]
    assert results() == ["bad-0001.failed.json", *done]
    failure = sidecar("out/bad-0001.failed.json")
    assert failure["error"]["kind"] == "ImageError"
    assert failure["job"]["where"] == "jobs.jsonl, line 3"
    times = {name: os.stat(f"out/{name}").st_mtime_ns for name in done}
    # it is tried again, and nothing else; it fails again
    status, out, err = toprope(*words, "--resume")
    assert (status, out) == (1, "")
    assert "0 of 5 done, 4 done before, 1 failed" in err
    assert results() == ["bad-0001.failed.json", *done]
    # repaired
    picture(40, 30).save("bad.png")
    status, out, err = toprope(*words, "--resume")
    assert (status, out.count("wrote ")) == (0, 1)
    assert results() == ["bad-0002.json", "bad-0002.png", *done]
    assert {name: os.stat(f"out/{name}").st_mtime_ns for name in done} == times
    # all is done: the model is not even loaded
    with monkeypatch.context() as patched:
        patched.setattr(Engine, "open", lambda *_, **__: pytest.fail("the model was loaded"))
        status, out, err = toprope(*words, "--resume")
    assert (status, out) == (0, "")
    assert "0 of 5 done, 5 done before" in err
    # a picture that was changed, and one whose result is gone, are to be done again; without --resume all are
    picture(40, 30, shift=9).save("good1.png")
    os.unlink("out/good2-0001.png")
    status, out, _ = toprope(*words, "--resume", "--quiet")
    assert (status, out.split()) == (0, ["out/good1-0002.png", "out/good2-0002.png"])


def test_jobs_that_go_together_fail_alone_too(toprope, model) -> None:
    status, out, err = toprope("edit", "--model", model, "--image", ".", *SNOW, *FAST, "--at-once", "3", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert [(each["job"], bool(each["error"])) for each in told] == [(1, True), *((at, False) for at in (2, 3, 4, 5))]
    assert told[0]["kept"] == "out/bad-0001.failed.json"
    assert "4 of 5 done, 1 failed" in err


# ---- Ctrl-C


def interrupt_at(monkeypatch, times) -> list[Step]:
    """Send this process SIGINT, as a terminal does, in the steps of these numbers (counted over all jobs)."""
    seen, step = [], Console.step

    def told(self, each):
        step(self, each)
        seen.append(each)
        if len(seen) in times:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Console, "step", told)
    return seen


def test_ctrl_c_finishes_the_step_and_resume_goes_on(toprope, model, monkeypatch) -> None:
    words = ("edit", "--model", model, "--image", "good*.png", *SNOW, *FAST, "--seed", "3")
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        seen = interrupt_at(patched, {3})
        status, out, err = toprope(*words)
    assert (status, out.count("wrote "), len(seen)) == (130, 1, 3)
    assert "toprope: stopping after this step; once more ends at once\n" in err
    assert "1 of 4 done, 3 left: Ctrl-C; results are in out; --resume does the rest" in err
    assert results() == ["good0-0001.json", "good0-0001.png"]
    assert signal.getsignal(signal.SIGINT) is before
    status, out, _ = toprope(*words, "--resume")
    assert (status, out.count("wrote ")) == (0, 3)


def test_ctrl_c_twice_ends_at_once(toprope, model, monkeypatch) -> None:
    def twice(self, each):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second one did not end it at once")

    monkeypatch.setattr(Console, "step", twice)
    status, out, err = toprope("edit", "--model", model, "--image", "good0.png", *SNOW, *FAST)
    assert (status, out) == (130, "")
    assert "0 of 1 done, 1 left: Ctrl-C" in err
    assert results() == []


# ---- 29


@pytest.mark.slow
def test_29_the_whole_template_is_sent_and_a_refiner_that_fails_is_reported(toprope, model) -> None:
    sent, answers = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, text = answers.pop(0)
            body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        who = f"openai:http://127.0.0.1:{server.server_port}/v1?model=m&retries=0"
        words = ("edit", "--model", model, "--image", "good0.png", "--instruction", 'say "{snow}"', *FAST)
        answers += [(200, "A street.\nCover the street with snow.\nA street in snow."), (500, ""), (200, "one\ntwo")]
        done = [toprope(*words, "--refiner", who) for _ in range(3)]
        server.shutdown()
    assert [status for status, _, _ in done] == [0, 0, 0]
    for each in sent:
        (text,) = [part["text"] for part in each["messages"][-1]["content"] if part["type"] == "text"]
        assert text == template('say "{snow}"')
        assert len(text) > 2000
    assert "good0.png was edited with: Cover the street with snow" in done[0][2]
    told = [sidecar(f"out/good0-000{number}.json") for number in (1, 2, 3)]
    assert [each["refinement"]["refined"] for each in told] == [True, False, False]
    assert told[0]["request"]["instruction"].startswith("Cover the street with snow")
    for number in (1, 2):
        assert told[number]["request"]["instruction"] == 'say "{snow}"'
        assert told[number]["refinement"]["reason"]
        assert f"the instruction was used as it is, {told[number]['refinement']['reason']}" in done[number][2]


# ---- what cannot be


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--image", "good0.png", *SNOW], "there is no model"),
        (["--model", "M"], "--image is missing"),
        (["--model", "M", "--image", "good0.png"], "--instruction is missing"),
        (["--model", "M", "--image", "none.png", *SNOW], "there is no picture none.png"),
        (["--model", "M", "--image", "*.tiff", *SNOW], "no file matches *.tiff"),
        (["--model", "M", "--jobs", "jobs.jsonl"], "jobs.jsonl cannot be read"),
        (["--model", "M", "--jobs", "bad.png"], "bad.png cannot be read: it is no UTF-8"),
        (["--model", "M", "--jobs", "x", "--image", "good0.png"], "--jobs has its own pictures"),
        (["--model", "M", "--image", "good0.png", *SNOW, "--seed", "three"], "--seed three is no seed"),
        (["--model", "M", "--image", "good0.png", *SNOW, "--steps", "0"], "steps is 0, and must be a whole number"),
        (["--model", "M", "--image", "good0.png", *SNOW, "--cfg-norm"], "the family ip2p have no cfg_norm"),
        (["--model", "M", "--image", "good0.png", *SNOW, "--format", "bmp"], "pictures cannot be saved as bmp"),
        (["--model", "M", "--image", "good0.png", *SNOW, "--cards", "2", "--device", "cpu"], "several cards were"),
        (["--model", "M", "--image", "good0.png", *SNOW, "--memory", "less"], "there is no rung 'less'"),
        (["--model", ".", "--image", "good0.png", *SNOW], "it has no model_index.json"),
        (["--repeat", "bad.png"], "bad.png cannot be read"),
        (["--repeat", "record.json"], "record.json is no record of an edit"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_error_before_anything_is_done(toprope, model, words, said) -> None:
    Path("record.json").write_text("{}")
    status, out, err = toprope("edit", *(model if word == "M" else word for word in words))
    assert (status, out) == (2, "")
    assert said in err
    assert re.match(r"toprope: [^\n]+\n(  [^\n]+\n)*\Z", err)
    assert not Path("out").exists() or results() == []


@pytest.mark.slow
def test_a_lora_changes_the_picture_is_in_the_record_and_is_repeated(toprope, model, monkeypatch) -> None:
    with Engine.open(model, device="cpu") as engine:
        save(Path("style.safetensors"), tensors(engine.loaded.pipeline))
    picture_of = ("edit", "--model", model, "--image", os.path.abspath("good0.png"))
    words = (*picture_of, *SNOW, *FAST, "--seed", "3", "--quiet")
    plain, styled = (toprope(*words, *more)[1].strip() for more in ((), ("--lora", "style.safetensors:0.5")))
    assert Path(plain).read_bytes() != Path(styled).read_bytes()
    (told,) = sidecar(Path(styled).with_suffix(".json"))["engine"]["loras"]
    assert (told["name"], told["scale"], told["path"]) == ("style", 0.5, os.path.abspath("style.safetensors"))
    os.mkdir("elsewhere")
    monkeypatch.chdir("elsewhere")
    _, again, err = toprope("edit", "--repeat", f"../{Path(styled).with_suffix('.json')}", "--quiet")
    assert err == ""
    assert Path(again.strip()).read_bytes() == Path(f"../{styled}").read_bytes()
    # what is no LoRA, and one for other layers, end the command before anything is written
    for name in ("bad.png", "none.safetensors"):
        status, out, err = toprope(*words[:-1], "--lora", f"../{name}")
        assert (status, out) == (2, "")
        assert name in err


# ---- the bar

ERASED = "\x1b[1A\x1b[2K"


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


class Terminal(io.StringIO):
    def __init__(self, monkeypatch) -> None:
        super().__init__()
        monkeypatch.setattr(sys, "stderr", self)
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setenv("TERM", "xterm")

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """The texts that were drawn, one after the other."""
        return [each.strip() for each in re.split(r"[\r\n]", plain(self.getvalue())) if each.strip()]


def test_the_bar_says_what_is_in_use(monkeypatch) -> None:
    facts = {"device": "npu:0", "dtype": "bfloat16", "attention": {"path": "sdpa"}, "memory": {"rung": "none"}}
    memory = {"allocated": 335 * 10**8, "total": 64 * 2**30}
    job = Job(EditRequest("/data/cat.png", "x"), "cat", 1)
    terminal = Terminal(monkeypatch)
    with Console(1) as console:
        console.watch(lambda: facts, lambda: memory)
        console.begin([job])
        console.step(Step(14, 28, 25.2))
    name, *said = re.split(r" *[━╸╺]+ *", terminal.lines()[-1])
    assert (name, said) == ("cat.png", ["14/28  1.8 s/step  25 s left  npu:0 bf16 sdpa  31.2 of 64.0 GiB"])
    lower = facts | {"attention": {"path": None}, "memory": {"rung": "tiers"}}
    terminal = Terminal(monkeypatch)
    with Console(1) as console:
        console.watch(lambda: lower, dict)
        console.step(Step(1, 2, 0.01, "refine"))
    assert terminal.lines()[-1].endswith("10 ms/step  refine  npu:0 bf16 memory tiers")


def test_on_a_terminal_there_is_a_bar_and_it_goes(model, monkeypatch, capfd) -> None:
    outer, inner = pty.openpty()
    monkeypatch.setattr(sys, "stderr", os.fdopen(inner, "w", closefd=True))
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["edit", "--model", model, "--image", "good0.png", *SNOW, *FAST]) == 0
    sys.stderr.close()
    seen = b""
    with suppress(OSError):  # how Linux tells that the other end is closed
        while piece := os.read(outer, 65536):
            seen += piece
    os.close(outer)
    shown = plain(seen.decode())
    assert re.search(r"good0\.png +[━╸╺]{24} +1/2  \S+ m?s/step", shown)
    assert re.search(r"━{24} +2/2  \S+ m?s/step  cpu fp32", shown)
    assert seen.decode().endswith(ERASED)


def test_on_several_cards_the_terminal_says_what_runs(monkeypatch, capsys) -> None:
    terminal = Terminal(monkeypatch)
    jobs = [Job(EditRequest(f"/data/{name}.png", "x"), name, number) for number, name in enumerate("abc", 1)]
    with Console(3, cards=2) as console:
        console.begin(jobs[:1])
        console.begin(jobs[1:2])
        console.end(Event(jobs[0], (Path("out/a-0001.png"),), {}))
        console.begin(jobs[2:])
    assert list(dict.fromkeys(terminal.lines())) == [
        "0 of 3 ended  on 2 cards: a.png ...",
        "0 of 3 ended  on 2 cards: a.png, b.png ...",
        "1 of 3 ended  on 2 cards: b.png ...",
        "1 of 3 ended  on 2 cards: b.png, c.png ...",
    ]
    assert capsys.readouterr().out.startswith("wrote out/a-0001.png ")


def test_the_rungs_of_the_help_are_those_that_there_are(toprope) -> None:
    _, out, _ = toprope("edit", "--help")
    *some, last = [each.name for each in RUNGS]
    assert f"auto, {', '.join(some)} or {last}." in " ".join(out.split())
    page = (Path(__file__).parents[2] / "docs/images.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", page.partition("## Memory")[2], re.M)[: len(RUNGS)] == [*some, last]


def test_every_option_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/images.md").read_text(encoding="utf-8")
    options = [option for each in typer.main.get_command(edit).params for option in each.opts if option[:2] == "--"]
    assert len(options) > 25
    assert [option for option in options if f"`{option}" not in page and option != "--help"] == []


# ---- images tiny


def test_the_commands_of_the_documentation_try_it_offline(toprope) -> None:
    text = (Path(__file__).parents[2] / "docs" / "images.md").read_text(encoding="utf-8")
    (block,) = [
        each
        for each in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
        if "\ntoprope edit" in each and "images tiny" in each
    ]
    commands = [shlex.split(line)[1:] for line in block.splitlines() if line.startswith("toprope")]
    assert [words[0] for words in commands] == ["images", "edit"]
    status, out, err = toprope(*commands[0])
    assert (status, err) == (0, "")
    assert "with random weights: its pictures are noise" in out
    (said,) = re.findall(r"^try it: toprope (.*)$", out, re.MULTILINE)
    assert shlex.split(said) == commands[1][:-2]
    assert commands[1][-2:] == ["--steps", "4"]
    status, out, _ = toprope(*commands[1])
    assert (status, out.count("wrote ")) == (0, 1)
    with Image.open("out/example-0001.png") as made:
        assert made.size == example().size


def test_a_tiny_model_is_not_written_over_and_has_a_family(toprope) -> None:
    status, out, err = toprope("images", "tiny", ".")
    assert (status, out) == (2, "")
    assert ". is there already" in err
    status, _, err = toprope("images", "tiny", "other", "--family", "dalle")
    assert status == 2
    assert "there are " in err
    assert "hidream-e1" in err
    status, out, _ = toprope("images", "tiny", "a model", "--family", "kontext", "--seed", "2", "--json")
    assert status == 0
    told = json.loads(out)
    assert (told["family"], told["seed"], told["example"]) == ("kontext", 2, "a model/example.png")
    assert told["bytes"] > 10**5


def test_the_families_of_the_help_are_those_that_there_are(toprope) -> None:
    from toprope.images.tiny import TINY

    _, out, _ = toprope("images", "tiny", "--help")
    assert ", ".join(TINY) in " ".join(out.split())
