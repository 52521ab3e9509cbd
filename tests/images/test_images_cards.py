"""`toprope edit --cards 2` on two simulated cards: an engine on each, a corrupt picture, a process that dies.

Holds `images.runs.cards`.
"""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from functions_world import leftovers, workers
from images_tiny import QUIET, picture, tiny
from toprope.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.native,
    pytest.mark.process,
    *QUIET,
    pytest.mark.usefixtures("ctrl_c_heeded"),
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with pictures, and two simulated cards."""
    model = str(tiny("ip2p"))
    monkeypatch.chdir(tmp_path)
    for name in ("ASCEND_RT_VISIBLE_DEVICES", "TOPROPE_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TOPROPE_SIM": "910B4x2", "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}.items():
        monkeypatch.setenv(name, value)
    for number in range(4):
        picture(40, 30, shift=40 * number).save(f"good{number}.png")
    Path("bad.png").write_bytes(Path("good0.png").read_bytes()[:60])
    return model


def edit(model, *words) -> int:
    fixed = ("--instruction", "make it snow", "--max-pixels", "256", "--seed", "3", "--cards", "2")
    return main(["edit", "--model", model, *fixed, *words])


def records() -> dict[str, dict]:
    return {path.name: json.loads(path.read_text()) for path in sorted(Path("out").glob("*.json"))}


@pytest.mark.soak
def test_jobs_are_spread_over_both_cards_and_a_corrupt_picture_fails_alone(place, capsys, monkeypatch) -> None:
    assert edit(place, "--image", ".", "--steps", "2", "--dtype", "fp32", "--json") == 1
    seen = capsys.readouterr()
    told = [json.loads(line) for line in seen.out.splitlines()]
    assert sorted((each["job"], bool(each["error"])) for each in told) == [
        (1, True), (2, False), (3, False), (4, False), (5, False),
    ]  # fmt: skip
    assert "bad.png (1 of 5) failed:" in seen.err
    assert "4 of 5 done, 1 failed" in seen.err
    made = records()
    assert list(made) == ["bad-0001.failed.json", *(f"good{number}-0001.json" for number in range(4))]
    done = [record for name, record in made.items() if "failed" not in name]
    assert {record["card"] for record in done} == {"0", "1"}
    for record in done:
        engine = record["engine"]
        assert (engine["device"], engine["simulated"], engine["device_name"]) == ("npu:0", True, "Ascend910B4")
    assert leftovers() == []
    # one engine on the CPU makes the same pictures, as far as the kernels round alike
    os.rename("out", "of_cards")
    monkeypatch.delenv("TOPROPE_SIM")
    assert main([
        "edit", "--model", place, "--instruction", "make it snow", "--max-pixels", "256", "--seed", "3", "--quiet",
        "--image", "good2.png", "--steps", "2", "--device", "cpu",
    ]) == 0  # fmt: skip
    import numpy
    from PIL import Image

    one, other = (numpy.asarray(Image.open(f"{folder}/good2-0001.png")).astype(int) for folder in ("out", "of_cards"))
    assert numpy.abs(one - other).max() <= 2


def when_editing(do) -> None:
    """Have a thread do something to a process that has loaded its model and edits: it has computed for long enough."""

    def watch() -> None:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            time.sleep(0.05)
            busy = [pid for pid in workers() if computed(pid) > 15]
            if busy:
                do(busy[0])
                return

    threading.Thread(target=watch, daemon=True).start()


@pytest.mark.soak
def test_a_process_that_is_killed_fails_its_job_and_another_takes_its_place(place, capsys) -> None:
    """With real processes; test_images_jobs.py has the same without."""
    jobs = [{"image": f"good{number % 4}.png", "steps": 1000 if number < 2 else 2} for number in range(5)]
    Path("jobs.jsonl").write_text("".join(json.dumps({**job, "instruction": "x"}) + "\n" for job in jobs))
    when_editing(lambda pid: os.kill(pid, signal.SIGKILL))
    assert edit(place, "--jobs", "jobs.jsonl") == 1
    seen = capsys.readouterr()
    assert "4 of 5 done, 1 failed" in seen.err
    assert "the process of a card ended" in seen.err
    assert leftovers() == []


@pytest.mark.soak
def test_ctrl_c_stops_all_cards_after_their_step(place, capsys) -> None:
    when_editing(lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert edit(place, "--image", "good*.png", "--steps", "1000") == 130
    seen = capsys.readouterr()
    assert "stopping after this step" in seen.err
    assert "0 of 4 done, 4 left: Ctrl-C" in seen.err
    assert os.listdir("out") == []
    assert leftovers() == []


def computed(pid: int) -> float:
    """Seconds of the CPU that a process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_record_is_compared_with_the_engine_also_where_several_cards_were_asked_for(place, capsys) -> None:
    """With --cards, `--repeat` said nothing of another dtype, other files or versions."""
    assert edit(place, "--image", "good0.png", "--steps", "2", "--dtype", "fp32") == 0
    capsys.readouterr()
    assert edit(place, "--repeat", "out/good0-0001.json", "--dtype", "bf16") == 0
    assert "the dtype is bfloat16, and was float32" in capsys.readouterr().err
