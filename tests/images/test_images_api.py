"""The HTTP API of `toprope ui`, with a stand-in for the model: fields by name, errors, and a slow start.

Holds `images.web.api` and `images.web.serving`.
"""

import base64
import io
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from PIL import Image

from images_tiny import picture
from toprope.errors import PackageError
from toprope.images.request import KNOBS, RANGES
from toprope.images.web import Controller, serve

pytestmark = [pytest.mark.slow, pytest.mark.process]
LONG = 240.0
PROGRAM = Path(__file__).resolve().parents[1] / "helpers" / "images_api_server.py"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server in a process of its own: Gradio leaves event loops open. It must stop by itself."""
    folder = tmp_path_factory.mktemp("api")
    command = [sys.executable, str(PROGRAM), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            url, scratch = process.stdout.readline().split()
            yield SimpleNamespace(url=url, scratch=Path(scratch), folder=folder)
            out, _ = process.communicate("", timeout=LONG)
            assert out == "stopped\n"
            assert not Path(scratch).exists()
        finally:
            process.kill()


def wait_for(path):
    until = time.monotonic() + LONG
    while not path.exists():
        assert time.monotonic() < until, f"{path} is not there"
        time.sleep(0.02)


@pytest.fixture
def ask(served):
    with httpx.Client(base_url=served.url, timeout=LONG, trust_env=False) as client:
        yield client


def cat():
    data = io.BytesIO()
    picture(40, 30).save(data, "PNG")
    return {"image": ("../cat.png", data.getvalue())}


def test_a_slow_machine_does_not_keep_the_page_from_starting_nor_recommends_a_tunnel(served, ask) -> None:
    """Gradio's launch asked itself once, gave up after 3 s, and said to set share=True."""
    assert ask.get("/").status_code == 200
    assert served.url.startswith("http://127.0.0.1:")


def test_the_api_has_the_names_and_ranges_of_the_command_line(ask) -> None:
    described = ask.get("/openapi.json").json()
    (body,) = (each for name, each in described["components"]["schemas"].items() if name.startswith("Body_"))
    fields = body["properties"]
    assert {"image", "instruction", "seed", "size", "fit", "sampler", "like", "lora", *KNOBS, *RANGES} <= set(fields)
    for name, (_, least, most) in RANGES.items():
        found = next(each for each in fields[name].get("anyOf", [fields[name]]) if "maximum" in each)
        assert (found["minimum"], found["maximum"]) == (least, most), name
    # what has places and no names is not described
    assert "/edit" not in ask.get("/gradio_api/info").json()["named_endpoints"]


def test_an_edit_by_names_answers_with_pictures_and_the_record(served, ask) -> None:
    answer = ask.post("/api/edits", files=cat(), data={"instruction": "snow", "seed": str(2**60), "num_images": 2})
    assert answer.status_code == 200
    made = answer.json()
    assert [each["seed"] for each in made["pictures"]] == [2**60, 2**60 + 1]
    with Image.open(io.BytesIO(base64.b64decode(made["pictures"][0]["data"]))) as opened:
        assert opened.size == (40, 30)
    assert made["instruction"] == made["record"]["request"]["instruction"] == "snow"
    assert made["record"]["request"]["image"] == "cat.png"  # where it lay here is nobody's business
    assert made["notices"] == ["cat.png: turned upright", "slow"]
    # nothing of it stays
    assert not list(served.scratch.glob("api-*"))
    assert not list((served.scratch / "made").iterdir())
    told = ask.get("/api/model").json()
    assert told["options"] == {"steps": 5}
    assert told["queue"]["done"] >= 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"instruction": "x", "steps": 5000}, "steps: Input should be less than or equal to 1000"),
        ({"instruction": "x", "guidance": "nan"}, "guidance"),
        ({"instruction": "  "}, "instruction is ''"),
        ({"instruction": "x" * 20_000}, "instruction: String should have at most 10000 characters"),
        ({"instruction": "x", "seed": "-5"}, "'-5' is not a seed"),
        ({"instruction": "x", "size": "huge"}, "size"),
        ({"instruction": "x", "lora": "a:b"}, "there is no LoRA 'a'"),
        ({}, "instruction: Field required"),
    ],
)
def test_what_cannot_be_is_one_error_in_the_same_form(ask, data, words) -> None:
    answer = ask.post("/api/edits", files=cat(), data=data)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert words in error["what"]
    assert error.keys() == {"what", "looked_at", "do"}
    assert error["do"]


@pytest.mark.parametrize(
    ("address", "data", "words"),
    [
        ("/api/edits", {"instruction": "x", "guidence": "5"}, "there is no field guidence."),
        ("/api/edits?steps=3", {"instruction": "x"}, "steps: it is in the address"),
        ("/api/edits", {"instruction": "x", "mask": "a.png"}, "mask: it must be a file."),
    ],
)
def test_a_field_that_nothing_reads_is_an_error(ask, address, data, words) -> None:
    """An unknown field was ignored, and the edit was done without it."""
    answer = ask.post(address, files=cat(), data=data)
    assert (answer.status_code, answer.json()["error"]["what"].startswith(words)) == (422, True)
    assert "openapi" in answer.json()["error"]["do"]


def test_a_request_that_is_no_form_and_an_address_that_nothing_serves_are_errors_like_all_others(ask) -> None:
    """They were Gradio's and FastAPI's: {"detail": "Not Found"}, and "image: Field required" for a body of JSON."""
    wrong = ask.post("/api/edits", json={"instruction": "x"})
    assert (wrong.status_code, wrong.json()["error"]["what"]) == (422, "the request is no form.")
    for method, path, status in (("GET", "edits", 405), ("DELETE", "model", 405), ("GET", "nothing", 404)):
        answer = ask.request(method, f"/api/{path}")
        assert answer.status_code == status
        assert answer.json()["error"]["what"] == f"there is no {method} /api/{path}."


@pytest.mark.parametrize("name", ["image", "mask"])
def test_the_api_keeps_the_limit_of_one_file(ask, name) -> None:
    """A request with one file may have as many bytes as two files, and so could the file."""
    large = {name: ("large.png", b"x" * (2**20 + 1))}
    answer = ask.post("/api/edits", files=cat() | large, data={"instruction": "x"})
    assert answer.status_code == 413
    assert answer.json()["error"]["what"] == f"{name}: the file has more than 1 MiB."
    assert "--max-upload" in answer.json()["error"]["do"]


def test_a_file_that_is_no_picture_is_called_by_its_name(ask) -> None:
    answer = ask.post("/api/edits", files={"image": ("a.png", b"xx")}, data={"instruction": "x"})
    assert answer.status_code == 422
    assert answer.json()["error"]["what"].startswith("a.png cannot be read as a picture")


def test_a_client_that_goes_away_cancels_its_edit(served, ask) -> None:
    (served.folder / "hold").touch()
    try:
        with pytest.raises(httpx.ReadTimeout):
            ask.post("/api/edits", files=cat(), data={"instruction": "x"}, timeout=httpx.Timeout(LONG, read=2.0))
        wait_for(served.folder / "began")
        wait_for(served.folder / "cancelled")
    finally:
        (served.folder / "hold").unlink()


def test_other_sites_are_kept_out(served, ask) -> None:
    own = served.url.rstrip("/")
    for path in ("/api/edits", "/gradio_api/upload"):
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}):
            assert ask.post(path, files=cat(), data={"instruction": "x"}, headers=headers).status_code == 403
    assert ask.get("/", headers={"Host": "evil.example"}).status_code == 403
    done = ask.post("/api/edits", files=cat(), data={"instruction": "x"}, headers={"Origin": own})
    assert done.status_code == 200


def test_uploads_are_bounded_in_bytes_and_number(ask) -> None:
    assert "--max-upload" in ask.post("/gradio_api/upload", files={"files": ("b.png", b"x" * (2**20 + 1))}).text
    assert ask.post("/gradio_api/upload", files={"files": ("b.png", b"x" * 2**22)}).status_code == 413
    got = [ask.post("/gradio_api/upload", files={"files": (f"{at}.png", b"%d" % at)}).status_code for at in range(5)]
    assert got == [200, 200, 200, 429, 429]


def test_without_fastapi_there_is_one_error(monkeypatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "GRADIO_ANALYTICS_ENABLED", "GRADIO_TEMP_DIR", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")  # `serve` sets variables of its process
    monkeypatch.setenv("DO_NOT_TRACK", "1")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "toprope.images.web.api", raising=False)
    controller = Controller("m", lambda tell: None)
    try:
        with pytest.raises(PackageError, match="cannot be imported"):
            serve(controller, port=0)
    finally:
        controller.close(LONG)
