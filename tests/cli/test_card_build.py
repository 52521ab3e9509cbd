"""First use of the simulated card: run, doctor and devices report its build, which is no fault and takes no time.

The compiler is a slow pretended one, which gives the build that this machine has.

Holds `cli.launch.card_build` in the commands that call it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pretend_compiler import Compiler
from toprope.cli import main
from toprope.sim import build

SECONDS = 6.0
BUILDING = "toprope: the simulated card is being built, once for this torch"


@pytest.fixture(scope="module")
def made() -> Path:
    """The build of this machine."""
    code = "from toprope.sim import build; print(build.ensure().folder)"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TOPROPE_SIM")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True, text=True, timeout=900, check=True,
    )  # fmt: skip
    return Path(done.stdout.strip())


@pytest.fixture
def empty_cache(tmp_path: Path, made: Path) -> dict[str, str]:
    """Variables with an empty cache and a compiler that takes its time once, when it links the core."""
    last = (
        f'case "$out" in *{build.CORE}) sleep {SECONDS};; esac\n'
        f'case "$out" in *.so) cp {made}/"${{out##*/}}" "$out";; *) echo made > "$out";; esac'
    )
    return variables(tmp_path, Compiler(tmp_path / "tools", last=last))


def variables(folder: Path, compiler: Compiler) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPROPE", "TORCH", "ASCEND"))}
    return kept | {"CXX": str(compiler.path), "TOPROPE_CACHE_DIR": str(folder / "cache")}


def toprope(*words: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toprope", *words], env=environment, capture_output=True, text=True, timeout=280
    )


@pytest.mark.slow
def test_the_report_of_a_run_counts_the_program_alone(tmp_path: Path, empty_cache: dict[str, str]) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os; print(os.environ['TOPROPE_SIM'])")
    first = toprope("run", "--device", "sim", "--json", str(program), environment=empty_cache)
    assert first.returncode == 0, first.stderr
    *progress, report = first.stderr.splitlines()
    assert progress[0] == BUILDING
    assert all(line.startswith("toprope: ") for line in progress)
    assert json.loads(report)["seconds"] < SECONDS
    second = toprope("run", "--device", "sim", str(program), environment=empty_cache)
    assert "built" not in second.stderr
    assert second.stdout == first.stdout


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["doctor", "devices"])
def test_a_build_was_diagnosed_as_a_broken_torch(verb: str, empty_cache: dict[str, str]) -> None:
    done = toprope(verb, "--json", environment=empty_cache | {"TOPROPE_SIM": "910B3x2"})
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["problems"]) == (0, 0), answer["findings"]
    devices = answer["devices"] if verb == "devices" else answer["facts"]["examination"]["devices"]
    assert [each["simulated"] for each in devices if each["kind"] == "npu"] == [True, True]
    assert done.stderr.startswith(f"{BUILDING}\n")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["doctor", "devices"])
def test_the_examiners_time_begins_after_the_build(
    verb: str, empty_cache: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from toprope.device.host.machine import Facts

    ready = []

    def collect_facts(**_: object) -> Facts:
        ready.append(build.is_ready())
        return Facts()

    monkeypatch.setattr("toprope.device.doctor.collect.collect_facts", collect_facts)
    for name in [name for name in os.environ if name.startswith(("TOPROPE", "TORCH", "ASCEND"))]:
        monkeypatch.delenv(name)
    for name, value in (empty_cache | {"TOPROPE_SIM": "910B3"}).items():
        monkeypatch.setenv(name, value)
    assert not build.is_ready()
    main([verb])
    assert ready == [True]
    assert capfd.readouterr().err.startswith(f"{BUILDING}\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "shown"),
    [(["doctor"], 1), (["devices"], 1), (["run", "--device", "sim"], 1), (["run", "--quiet", "--device", "sim"], 0)],
)
def test_a_compiler_that_fails_is_reported_as_that(tmp_path: Path, words: list[str], shown: int) -> None:
    broken = variables(tmp_path, Compiler(tmp_path / "tools", last="echo 'x.h:3: error: no such thing' >&2; exit 4"))
    (tmp_path / "program.py").write_text("print('started')")
    if words[0] == "run":
        words = [*words, str(tmp_path / "program.py")]
    else:
        broken["TOPROPE_SIM"] = "910B3"
    done = toprope(*words, environment=broken)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count(BUILDING) == shown
    assert re.search(
        r"^toprope: the C\+\+ compiler failed on \w+\.cpp or \d+ files compiled with it\.$", done.stderr, re.MULTILINE
    )
    assert "exit status 4: x.h:3: error: no such thing" in done.stderr
    assert "toprope explain build" in done.stderr
    assert "torch`" not in done.stderr


@pytest.mark.parametrize("value", [None, "nonsense", "910Z9"])
def test_nothing_is_built_for_a_card_that_no_process_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    from toprope.cli.launch import card_build

    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setenv("TOPROPE_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TOPROPE_SIM", raising=False)
    if value is not None:
        monkeypatch.setenv("TOPROPE_SIM", value)
    card_build.ensure_for_environment()
