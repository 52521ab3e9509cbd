"""The flows of docs/architecture.md: a run of each passes the files that the page names."""

import re
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from device_stand_ins import run_anew, told
from toprope.tiers import attach, skeleton

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "toprope"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def rows(title):
    """The files of the table under a heading, those that a row begins with."""
    (text,) = re.findall(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found = [
        path
        for line in text.splitlines()
        if line.startswith("| `")
        for path in re.findall(r"`([\w/.]+)`", line.split("|")[1])
    ]
    assert len(found) >= 10
    return set(found)


@contextmanager
def files_seen():
    """A context with the set of toprope's files whose functions are called in it, by any thread that begins in it."""
    seen = set()

    def profile(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{PACKAGE}/") and not frame.f_code.co_name.startswith("<"):
            seen.add(path.removeprefix(f"{PACKAGE}/"))

    before = sys.getprofile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def test_a_weight_passes_the_files_of_the_page(tmp_path):
    def build():
        return torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(12)))

    whole, x = build(), torch.randn(4, 256)
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    with skeleton():
        model = build()
    with (
        files_seen() as seen,
        attach(model, device="1MB", host="1MB", disk=tmp_path, small="100kB", slots=2, on="cpu"),
    ):
        assert torch.equal(model(x), whole(x))
    assert sorted(rows("A weight to its layer") - seen) == []


PICTURE = """
import sys
from toprope.cli import main

def run(*arguments):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, ended.code

seen = set()

def profile(frame, event, argument):
    if event == "call" and not frame.f_code.co_name.startswith("<"):
        seen.add(frame.f_code.co_filename)

run("images", "tiny", "tiny")
sys.setprofile(profile)
options = ["--model", "tiny", "--image", "tiny/example.png", "--instruction", "snow", "--steps", "2", "--device", "cpu"]
run("edit", *options)
sys.setprofile(None)
tell(sorted(seen))
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_picture_passes_the_files_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside = {path.removeprefix(f"{PACKAGE}/") for path in told(PICTURE, by=run_anew)}
    assert sorted(rows("A picture to its result") - inside) == []
