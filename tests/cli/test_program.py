"""The argument PROGRAM of `toprope run`: files, modules, commands, and the error for each that is not there.

Holds `cli.launch.program`.
"""

import sys
from pathlib import Path

import pytest

from toprope.cli.launch.program import command_line
from toprope.errors import ProgramError, UsageError

pytestmark = pytest.mark.native


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_python_file(here: Path) -> None:
    (here / "train.py").touch()
    assert command_line(["train.py", "-x", "--chip", "y"]) == [sys.executable, "train.py", "-x", "--chip", "y"]


@pytest.mark.parametrize("words", [["-m", "json.tool", "-x"], ["-mjson.tool", "-x"]])
def test_a_module(words: list[str]) -> None:
    assert command_line(words) == [sys.executable, "-m", "json.tool", "-x"]


def test_a_module_in_the_current_folder_is_not_imported_to_be_found(here: Path) -> None:
    (here / "package").mkdir()
    (here / "package" / "__init__.py").write_text("raise SystemExit('imported')")
    (here / "package" / "train.py").touch()
    assert command_line(["-m", "package.train"])[1:] == ["-m", "package.train"]
    with pytest.raises(ProgramError, match=r"there is no module 'package\.trian'\."):
        command_line(["-m", "package.trian"])


def test_a_folder_without_init_is_a_package_too(here: Path) -> None:
    (here / "space").mkdir()
    (here / "space" / "train.py").touch()
    assert command_line(["-m", "space.train"])[1:] == ["-m", "space.train"]


@pytest.mark.parametrize("name", ["this", "toprope", "torch_npu", "sys", "pytest", "json"])
def test_modules_of_every_kind_are_found(name: str) -> None:
    assert command_line(["-m", name])[1:] == ["-m", name]


def test_a_command() -> None:
    (shell,) = command_line(["sh"])
    assert Path(shell).name == "sh"
    assert Path(shell).is_absolute()


def test_a_command_by_its_path(here: Path) -> None:
    script = here / "start"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert command_line(["./start", "a"]) == ["./start", "a"]


def test_a_file_that_cannot_be_executed_is_a_python_file(here: Path) -> None:
    (here / "train").touch()
    assert command_line(["./train"]) == [sys.executable, "./train"]


def test_a_folder_with_main(here: Path) -> None:
    (here / "app").mkdir()
    (here / "app" / "__main__.py").touch()
    assert command_line(["app"]) == [sys.executable, "app"]


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("trian.py", "there is no file 'trian.py'."),
        ("folder.py", "'folder.py' is not a file."),
        ("no-such-command", "there is no program 'no-such-command': no file of that name, and no command."),
        ("./no-such-file", "there is no program './no-such-file': no file of that name, and no command."),
        ("folder.py/", "there is no program 'folder.py/'"),
        ("", "there is no program ''"),
    ],
)
def test_what_is_not_there(here: Path, program: str, text: str) -> None:
    (here / "folder.py").mkdir()
    with pytest.raises(ProgramError) as caught:
        command_line([program])
    assert caught.value.what.startswith(text)
    assert caught.value.do
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("name", ["no_such_module", "json.no_such", "json.tool.deeper", "sys.path", "a..b", "."])
def test_modules_that_are_not_there(name: str) -> None:
    with pytest.raises(ProgramError) as caught:
        command_line(["-m", name])
    assert f"there is no module {name!r}" in caught.value.what


def test_m_without_a_module() -> None:
    with pytest.raises(UsageError, match="-m needs the name of a module"):
        command_line(["-m"])
