"""Build of the simulator's native part, with a stand-in for the compiler: commands, cache, and messages.

Holds src/toprope/sim/build.py. The real build is made by the first test that uses the card; tests/sim/test_simulated.py
reports its failure.
"""

import fcntl
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pretend_compiler import SOURCES, TORCH, Compiler, folders, named_compiler, prepare, sources
from toprope.errors import BuildError
from toprope.native_build import NativeLibrary
from toprope.sim import build

pytestmark = pytest.mark.native

cache, compiler = pytest.fixture(prepare), pytest.fixture(named_compiler)


# ---- a build


def test_a_build_is_made_once(cache: Path, compiler: Compiler, capsys: pytest.CaptureFixture[str]) -> None:
    made = build.ensure()
    assert folders(cache) == [made.folder]
    assert sorted(path.name for path in made.folder.iterdir()) == sorted([build.CORE, build.GLUE, "build.json"])
    assert (made.core, made.glue) == (made.folder / build.CORE, made.folder / build.GLUE)
    assert compiler.compiled == [str(path) for path in SOURCES]
    assert compiler.linked == [build.CORE, build.GLUE]
    said = capsys.readouterr()
    assert said.out == ""
    first, *progress, last = said.err.splitlines()  # progress on a busy machine only
    assert all(re.fullmatch(r"toprope: building the simulated card: \d/5, \d+ s", line) for line in progress)
    assert first.startswith(f"toprope: building the simulated card for torch {TORCH.version} with {compiler.path}")
    assert re.fullmatch(rf"toprope: built in \d+ s, kept in {re.escape(str(made.folder))}", last)

    calls = len(compiler.calls)
    assert build.ensure() == made
    assert len(compiler.calls) == calls
    assert capsys.readouterr() == ("", "")


def test_how_the_compiler_is_called(cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{compiler.path} -m64 '-DNAME=a b'")
    build.ensure()
    for call in compiler.calls:
        assert call[:2] == ["-m64", "-DNAME=a b"]
        headers = [argument for argument in call if argument.startswith("-I")]
        if "-c" in call:
            (room,) = {Path(source).parent.name for source in sources(call)}
            assert "-std=c++20" in call
            # Only the glue may see torch: the core has to work without it.
            assert bool(headers) == (room == "torch")
            own = f"-I{SOURCES[0].parent.parent}/torch"
            assert all(header.startswith((f"-I{TORCH.folder}/include", own)) for header in headers)
    core, glue = (call for call in compiler.calls if "-shared" in call)
    assert not any(argument.startswith(("-ltorch", "-lc10")) for argument in core)
    assert {"-ltoprope_core", "-ltorch_cpu", "-lc10", "-Wl,-rpath,$ORIGIN"} <= set(glue)
    assert not any("torch_python" in argument for argument in glue), "a build serves every Python"
    for call, room in ((core, "core"), (glue, "torch")):
        objects = [Path(argument).stem for argument in call if argument.endswith(".o")]
        linked = sorted(source for name in objects for source in compiler.units[name])
        assert linked == [str(path) for path in SOURCES if path.parent.name == room]


def test_a_cache_in_a_folder_with_an_odd_name(
    tmp_path: Path, cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPROPE_CACHE_DIR", str(tmp_path / "with space [1] 缓存 $HOME"))
    made = build.ensure()
    assert made.core.read_text() == "made\n"
    assert build.ensure() == made


def test_what_a_build_is_for_decides_its_folder(
    tmp_path: Path, cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [build.ensure().folder]
    other = Compiler(tmp_path / "tools", name="other-c++")
    monkeypatch.setenv("CXX", str(other.path))
    seen.append(build.ensure().folder)
    monkeypatch.setenv("CXX", f"{other.path} -O0")
    seen.append(build.ensure().folder)
    for torch in (build.Torch("9.9.8", TORCH.revision, TORCH.folder), build.Torch(TORCH.version, "f00", TORCH.folder)):
        monkeypatch.setattr(build.Torch, "imported", classmethod(lambda cls, torch=torch: torch))
        seen.append(build.ensure().folder)
    monkeypatch.setattr(build.Torch, "imported", classmethod(lambda cls: TORCH))
    copy = tmp_path / "csrc"
    shutil.copytree(SOURCES[0].parent.parent, copy)
    monkeypatch.setattr(build, "_SOURCES", copy)
    with next(copy.rglob("*.h")).open("a") as file:
        file.write("// changed\n")
    seen.append(build.ensure().folder)
    assert len(set(seen)) == len(seen) == 6
    assert folders(cache) == sorted(seen)


def test_the_same_sources_elsewhere_are_the_same_build(
    tmp_path: Path, cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build.ensure()
    copy = tmp_path / "another" / "csrc"
    shutil.copytree(SOURCES[0].parent.parent, copy)
    monkeypatch.setattr(build, "_SOURCES", copy)
    assert build.ensure() == made


def test_a_build_is_as_readable_as_other_files_of_its_user(cache: Path, compiler: Compiler) -> None:
    # A cache that several users share is of use only when they can read it.
    before = os.umask(0o022)
    try:
        made = build.ensure()
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o755
    assert stat.S_IMODE(made.core.stat().st_mode) & 0o444 == 0o444


# ---- no compiler


def test_no_compiler_and_no_build(cache: Path) -> None:
    with pytest.raises(BuildError) as caught:
        build.ensure()
    text = str(caught.value)
    assert "there is no C++ compiler" in text
    assert "CXX is not set" in text
    assert f"no build for torch {TORCH.version} in {cache}" in text
    assert "apt install g++" in text
    assert not cache.exists()


def test_no_compiler_but_a_finished_build(
    cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = build.ensure()
    capsys.readouterr()
    monkeypatch.delenv("CXX")
    assert build.ensure() == made
    assert capsys.readouterr() == ("", "")
    # ... but not one that was made for something else.
    monkeypatch.setattr(
        build.Torch, "imported", classmethod(lambda cls: build.Torch("9.9.8", TORCH.revision, TORCH.folder))
    )
    with pytest.raises(BuildError, match=r"there is no C\+\+ compiler"):
        build.ensure()


def test_a_named_compiler_that_is_not_there(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Compiler(tmp_path / "bin", name="g++")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    for named in ("no-such-c++", "/no/such/c++ -O2", str(tmp_path)):
        monkeypatch.setenv("CXX", named)
        with pytest.raises(BuildError, match=re.escape(named)):
            build.ensure()
    assert folders(cache) == []


def test_the_compiler_on_the_path(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clang = Compiler(tmp_path / "bin", name="clang++")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    if not (Path("/bin") / "g++").exists():
        first = build.ensure()
        assert clang.compiled
    gnu = Compiler(tmp_path / "bin", name="g++")
    monkeypatch.setenv("CXX", "")  # an empty variable counts as unset
    second = build.ensure()
    assert gnu.compiled == [str(path) for path in SOURCES]
    if clang.compiled:
        assert first != second


def test_a_variable_that_no_shell_could_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", 'g++ "-O2')
    with pytest.raises(BuildError, match="CXX"):
        build.ensure()


# ---- a compiler that fails


def fails(folder: Path, monkeypatch: pytest.MonkeyPatch, **how: str) -> str:
    broken = Compiler(folder / "broken", **how)
    monkeypatch.setenv("CXX", str(broken.path))
    with pytest.raises(BuildError) as caught:
        build.ensure()
    return str(caught.value)


def test_a_compiler_that_fails(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    last = "echo 'in file x.h:' >&2; echo 'x.h:3: error: no such thing' >&2; echo output; exit 4"
    text = fails(tmp_path, monkeypatch, last=last)
    assert re.search(r"the C\+\+ compiler failed on \w+\.cpp or \d+ files compiled with it\.", text)
    assert f"{tmp_path}/broken/c++, exit status 4: x.h:3: error: no such thing" in text
    assert "g++ 11 or newer" in text
    assert folders(cache) == [], "nothing is left half done"
    assert "built in" not in capsys.readouterr().err
    # And the next attempt starts anew.
    good = Compiler(tmp_path / "tools")
    monkeypatch.setenv("CXX", str(good.path))
    assert build.ensure().core.exists()


def test_a_compiler_that_fails_without_a_word(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "exit status 1" in fails(tmp_path, monkeypatch, last="exit 1")
    killed = fails(tmp_path, monkeypatch, last="kill -9 $$")
    assert "ended by signal 9" in killed
    assert "for want of memory" in killed
    assert folders(cache) == []


@pytest.mark.parametrize(("step", "done"), [("-c", "0/5"), ("-shared", "3/5")])
def test_a_build_whose_output_is_no_terminal_was_silent_to_its_end(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: str,
    done: str,
) -> None:
    monkeypatch.setattr("toprope.terminal._REPORT", 0.5)
    slow = Compiler(tmp_path / "tools", before=f'case "$*" in *{step}*) /bin/sleep 2.5;; esac')
    monkeypatch.setenv("CXX", str(slow.path))
    build.ensure()
    assert f"\ntoprope: building the simulated card: {done}, " in capsys.readouterr().err


def test_a_linker_that_fails(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = 'case "$*" in *-ltorch_cpu*) echo "cannot find -ltorch_cpu: error" >&2; exit 1;; esac'
    text = fails(tmp_path, monkeypatch, before=before)
    assert f"failed on {build.GLUE}" in text
    assert "cannot find -ltorch_cpu" in text
    assert folders(cache) == []


def test_a_compiler_that_is_no_program(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "picture"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    with pytest.raises(BuildError) as caught:
        build.ensure()
    assert "cache directory" not in str(caught.value), "it is not the cache's fault"
    assert str(path) in str(caught.value)
    assert folders(cache) == []


def test_a_compiler_that_makes_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = fails(tmp_path, monkeypatch, last="exit 0")
    assert "cache directory" not in text, "it is not the cache's fault"
    assert folders(cache) == []


def test_an_interrupted_build(cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(NativeLibrary, "_compile", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build.ensure()
    assert folders(cache) == []
    assert build.ensure().core.exists()


# ---- builds that are not right


def test_a_build_for_another_torch_is_refused(cache: Path, compiler: Compiler) -> None:
    made = build.ensure()
    note = json.loads((made.folder / "build.json").read_text())
    assert (note["torch"], note["revision"]) == (TORCH.version, TORCH.revision)
    (made.folder / "build.json").write_text(json.dumps(note | {"torch": "9.8.7"}))
    with pytest.raises(BuildError) as caught:
        build.ensure()
    text = str(caught.value)
    assert f"was made for torch 9.8.7 ({TORCH.revision}), this is torch {TORCH.version} ({TORCH.revision})" in text
    assert f"remove {made.folder}" in text
    with pytest.raises(BuildError):
        build.check(made.folder, TORCH)
    assert build.check(made.folder, build.Torch("9.8.7", TORCH.revision, TORCH.folder)).folder == made.folder


@pytest.mark.parametrize(("version", "is_refused"), [("2.10.0+cpu", True), ("2.11.1", True), ("2.12.0", False)])
def test_a_torch_that_is_too_old_was_called_a_compiler_that_is(
    cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, version: str, is_refused: bool
) -> None:
    monkeypatch.setattr(build.Torch, "imported", lambda: build.Torch(version, TORCH.revision, TORCH.folder))
    if is_refused:
        with pytest.raises(BuildError, match=rf"needs torch 2\.12 or newer, this is torch {re.escape(version)}"):
            build.ensure()
        assert not compiler.calls
    else:
        build.ensure()


def test_a_build_for_the_same_version_from_other_sources_is_refused_with_the_reason(
    cache: Path, compiler: Compiler
) -> None:
    made = build.ensure()
    note = json.loads((made.folder / "build.json").read_text())
    (made.folder / "build.json").write_text(json.dumps(note | {"revision": "feedbee"}))
    with pytest.raises(BuildError) as caught:
        build.ensure()
    assert "feedbee" in str(caught.value)
    assert TORCH.revision in str(caught.value)


@pytest.mark.parametrize("note", ["", "{", "[]", "null", '"text"', "{}", '{"torch": 3}'])
def test_a_note_that_cannot_be_read(cache: Path, compiler: Compiler, note: str) -> None:
    made = build.ensure()
    (made.folder / "build.json").write_text(note)
    with pytest.raises(BuildError, match=f"remove {re.escape(str(made.folder))}"):
        build.ensure()


def test_a_shared_object_that_was_cut_short_crashed_the_interpreter(cache: Path, compiler: Compiler) -> None:
    made = build.ensure()
    whole = made.glue.read_text()
    made.glue.write_text(whole[:2])
    assert build.ensure() == made
    assert made.glue.read_text() == whole


def test_a_compiler_that_is_not_there_was_called_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++-99")
    with pytest.raises(BuildError, match="CXX names a compiler that is not there") as caught:
        build.ensure()
    assert "CXX='g++-99'" in str(caught.value)


def test_the_reason_of_a_linker_was_dropped(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "/usr/bin/ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status"
    before = f'case "$*" in *-shared*) printf "%s" "{lines}" >&2; exit 1;; esac'
    text = fails(tmp_path, monkeypatch, before=before)
    assert "No space left on device" in text
    assert "free some space" in text
    assert "C++20" not in text


def test_a_reason_in_capital_letters_was_dropped(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = 'printf "note: 1\\nnote: 2\\nnote: 3\\nFatal Error: no header\\n" >&2; exit 1'
    assert "Fatal Error: no header" in fails(tmp_path, monkeypatch, before=before)


def test_another_users_lock_shut_a_shared_cache(cache: Path, compiler: Compiler) -> None:
    made = build.ensure()
    (lock,) = cache.glob("*.lock")
    assert lock.stat().st_mode & 0o044 == 0o044
    assert made.core.exists()


def test_two_units_of_one_name_were_one(tmp_path: Path, compiler: Compiler) -> None:
    from toprope.native_build import NativeLibrary, SharedObject, Unit

    for name in ("a", "b"):
        (tmp_path / f"{name}.cpp").write_text(f"int {name};\n")
    objects = tuple(SharedObject(f"lib{name}.so", (Unit("u", (tmp_path / f"{name}.cpp",)),)) for name in ("a", "b"))
    NativeLibrary("the test", tmp_path / "kept", objects, (), "a moment").ensure()
    assert len(compiler.units) == 2
    with pytest.raises(ValueError, match="nothing to build"):
        NativeLibrary("the test", tmp_path / "kept", (), (), "a moment")


def test_what_a_crash_left_is_not_used(cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    made = build.ensure()
    (made.folder / "build.json").unlink()  # it is written last
    made.core.write_text("half of it")
    aside = made.folder.with_name(f"{made.folder.name}.building-abcdef")
    aside.mkdir()
    (aside / build.CORE).write_text("half of it, too")
    other = cache / "torch-9.9.8-feed.building-abcdef"
    held = cache / "torch-9.9.8-beef.building-abcdef"
    for folder in (other, held):
        folder.mkdir()
    lock = (cache / "torch-9.9.8-beef.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with monkeypatch.context() as patched:
        patched.delenv("CXX")
        with pytest.raises(BuildError, match=r"there is no C\+\+ compiler"):
            build.ensure()
    assert build.ensure() == made
    assert made.core.read_text() == "made\n"
    assert folders(cache) == sorted([made.folder, held]), "what a builder works on that lives is not removed"
    lock.close()


@pytest.mark.parametrize("name", [build.CORE, build.GLUE])
def test_a_build_that_lost_a_file_is_made_anew_or_told(cache: Path, compiler: Compiler, name: str) -> None:
    made = build.ensure()
    (made.folder / name).unlink()
    try:
        again = build.ensure()
    except BuildError as error:
        assert str(made.folder) in str(error)  # noqa: PT017 - either answer is fine
    else:
        assert again.core.exists()
        assert again.glue.exists()


# ---- asking and building without torch


def test_whether_a_build_is_there(cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.Torch, "installed", classmethod(lambda cls: TORCH))
    assert not build.is_ready()
    assert not cache.exists()
    made = build.ensure()
    assert build.is_ready()
    assert not build.is_being_built()
    with (cache / f"{made.folder.name}.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert build.is_being_built()
    (made.folder / "build.json").unlink()
    assert not build.is_ready()
    monkeypatch.setattr(build.Torch, "installed", classmethod(lambda cls: None))
    assert not build.is_ready()


@pytest.mark.slow
def test_the_installed_torch_is_found_without_importing_it(cache: Path) -> None:
    code = """
import sys
from toprope.sim import build
found = build.Torch.installed()
assert not build.is_ready() and not build.is_being_built()
assert "torch" not in sys.modules
assert found == build.Torch.imported(), found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_command(cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-W", "error", "-m", "toprope.sim.build"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")
    (made,) = folders(cache)
    assert done.stderr.splitlines()[0].startswith("toprope: building the simulated card for torch ")
    assert str(made) in done.stderr
    monkeypatch.setenv("CXX", "no-such-c++")
    shutil.rmtree(made)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(
        "toprope: the simulated card has to be built once, and CXX names a compiler that is not there.\n"
    )
    assert "  do         correct CXX" in done.stderr
