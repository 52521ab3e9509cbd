"""Build of the simulator's native part by several processes, and for users who may not write the cache.

Holds src/toprope/sim/build.py.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretend_compiler import SOURCES, Compiler, folders, named_compiler, prepare
from toprope import native_build
from toprope.errors import BuildError
from toprope.sim import build

pytestmark = [pytest.mark.native, pytest.mark.process]

cache, compiler = pytest.fixture(prepare), pytest.fixture(named_compiler)


CHILD = """
    import os, sys
    from pathlib import Path
    from toprope.errors import BuildError
    from toprope.sim import build
    build.Torch.imported = classmethod(lambda cls: build.Torch("9.9.9+test", "0123abc", Path("/nowhere/torch")))
    if sys.argv[1:]:  # the user who may do least
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        print(build.ensure().folder)
    except BuildError as error:
        print("BuildError:", error)
"""


def child(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(CHILD), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(condition: object, limit: float = 30) -> None:
    end = time.monotonic() + limit
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_two_first_runs_at_once_build_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Compiler(tmp_path / "tools", before="/bin/sleep 0.05")
    monkeypatch.setenv("CXX", str(slow.path))
    both = [child(), child()]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    (made,) = folders(cache)
    assert {answer[0] for answer in answers} == {f"{made}\n"}
    assert slow.compiled == [str(path) for path in SOURCES]
    assert slow.linked == [build.CORE, build.GLUE]
    said = sorted((answer[1] for answer in answers), key=len)
    assert said[1].count("; once, about") == said[1].count("toprope: built") == 1
    assert said[0] in ("", "toprope: waiting for another process that builds the simulated card\n")


def test_a_builder_that_is_killed_frees_the_way(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Compiler(tmp_path / "tools", before="/bin/sleep 0.3")
    monkeypatch.setenv("CXX", str(slow.path))
    first = child()
    wait_for(lambda: slow.calls)
    second = child()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    quick = Compiler(tmp_path / "quick")
    quick.path.write_text(slow.path.read_text().replace("/bin/sleep 0.3", ""))
    quick.path.replace(slow.path)  # a file that may just be run cannot be written
    out, _ = second.communicate(timeout=120)
    assert second.returncode == 0
    made = Path(out.strip())
    assert (made / build.CORE).read_text() == "made\n"


def processes_that_name(text: str) -> list[str]:
    """Command lines of living processes, but for this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            zombie = (path.parent / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if text in line and not zombie and path.parent.name != str(os.getpid()):
            found.append(line)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ended", [signal.SIGKILL, signal.SIGTERM])
def test_the_build_of_a_run_outlived_the_run(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, ended: signal.Signals
) -> None:
    work = f"/bin/sleep 2000{os.getpid()}"
    slow = Compiler(tmp_path / "tools", before=f"{work} &\nwait")
    monkeypatch.setenv("CXX", str(slow.path))
    monkeypatch.setenv("PATH", os.defpath)
    program = tmp_path / "program.py"
    program.write_text("print('never')")
    run = subprocess.Popen(
        [sys.executable, "-m", "toprope", "run", "--chip", "910B3", str(program)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: processes_that_name(work))
    run.send_signal(ended)
    assert run.wait(timeout=60) == -ended
    wait_for(lambda: not processes_that_name(work) and not processes_that_name(str(slow.path)))


@pytest.mark.slow
@pytest.mark.parametrize("ended", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_compilers_end_with_their_builder(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, ended: signal.Signals
) -> None:
    # As g++ does, the compiler works in a child process, which does not end with the driver.
    work = f"/bin/sleep 1000{os.getpid()}"
    slow = Compiler(tmp_path / "tools", before=f"{work} &\nwait")
    monkeypatch.setenv("CXX", str(slow.path))
    builder = child()
    wait_for(lambda: processes_that_name(work))
    (aside,) = folders(cache)
    assert processes_that_name(str(slow.path))
    builder.send_signal(ended)
    builder.communicate(timeout=60)
    wait_for(lambda: not processes_that_name(str(slow.path)) and not processes_that_name(work))
    assert aside.exists() == (ended != signal.SIGINT), "only an interrupted builder can clean up"
    quick = Compiler(tmp_path / "quick")
    quick.path.replace(slow.path)
    out, _ = child().communicate(timeout=120)
    assert folders(cache) == [Path(out.strip())]


def test_a_terminal_sees_one_line(cache: Path, compiler: Compiler) -> None:
    terminal, other_end = os.openpty()
    with open(terminal, "rb", buffering=0) as screen:
        builder = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD)], stdout=subprocess.PIPE, stderr=other_end, text=True
        )
        os.close(other_end)
        out, _ = builder.communicate(timeout=120)
        seen = screen.read(100_000).decode()
    assert folders(cache) == [Path(out.strip())]
    first, *_, last = seen.splitlines()
    assert first.startswith("toprope: building the simulated card for torch ")
    assert "0/5" in seen
    assert "5/5" in seen
    assert last.rpartition("\x1b[2K")[2].startswith("toprope: built in ")


def test_a_builder_that_does_not_get_done(
    cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build.ensure()
    monkeypatch.setattr(native_build, "LOCK_LIMIT", 0.3)
    shutil.rmtree(folders(cache)[0])
    (lock,) = cache.glob("*.lock")
    capsys.readouterr()
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BuildError, match="another process has been building"):
            build.ensure()
    assert capsys.readouterr().err == "toprope: waiting for another process that builds the simulated card\n"
    assert build.ensure().core.exists()


# ---- a cache that cannot be written


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter: pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="toprope-test-"))
    folder.chmod(0o755)
    yield folder
    for path in folder.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a build says to a user who may read the folder, but not write it."""
    monkeypatch.setenv("TOPROPE_CACHE_DIR", str(folder / "cache"))
    monkeypatch.chdir(folder)
    privileged = os.getuid() == 0  # root may write everything: it has to become somebody else
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    process = child(*["nobody"] * privileged)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out.strip()


def test_a_cache_that_may_not_be_written(cache: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Compiler(open_folder / "tools")
    monkeypatch.setenv("CXX", str(tool.path))
    (open_folder / "cache").mkdir()
    text = as_nobody(open_folder, monkeypatch)
    assert text.startswith("BuildError: the simulated card has to be built once, and the cache directory cannot be")
    assert f"{open_folder}/cache/sim: Permission denied" in text
    assert "TOPROPE_CACHE_DIR" in text
    assert tool.calls == []


def test_a_finished_build_in_a_cache_that_may_not_be_written(
    cache: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = Compiler(open_folder / "tools")
    monkeypatch.setenv("CXX", str(tool.path))
    monkeypatch.setenv("TOPROPE_CACHE_DIR", str(open_folder / "cache"))
    made = build.ensure()
    made.folder.chmod(0o755)
    calls = len(tool.calls)
    assert as_nobody(open_folder, monkeypatch) == str(made.folder)
    assert len(tool.calls) == calls


def test_a_build_that_may_not_be_read(cache: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Compiler(open_folder / "tools")
    monkeypatch.setenv("CXX", str(tool.path))
    monkeypatch.setenv("TOPROPE_CACHE_DIR", str(open_folder / "cache"))
    made = build.ensure()
    made.folder.chmod(0o700 if os.getuid() == 0 else 0o000)
    assert as_nobody(open_folder, monkeypatch).startswith("BuildError: ")


def test_a_cache_below_a_file(tmp_path: Path, cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOPROPE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(BuildError, match="the cache directory cannot be written") as caught:
        build.ensure()
    assert "Not a directory" in str(caught.value)
    assert compiler.calls == []
