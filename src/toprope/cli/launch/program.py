"""The argument PROGRAM of `toprope run`: a Python file, `-m module`, or a command; it is checked before it starts.

Called by `cli.run`. `-m`, the current folder first, and folders with `__main__.py` are as Python's own command line has
them; endings and messages are free. It must not import what it looks for. Tests: tests/cli/test_program.py has each
form and each error.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from toprope.cli import npu_smi, yr
from toprope.compat.finder import FACADES
from toprope.errors import ProgramError, UsageError

__all__ = ["command_line"]

_PYTHON_SUFFIXES = (".py", ".pyw", ".pyc", ".pyz")


def command_line(words: Sequence[str]) -> list[str]:
    """The command that starts a program. Nothing is imported or started.

    Args:
        words: PROGRAM with its arguments. Files and modules are run by the Python that runs toprope.

    Raises:
        ProgramError: there is no such file, module or command.
        UsageError: `-m` without a module.
    """
    program, *arguments = words
    if program.startswith("-m"):
        # `-mmodule` is as good as `-m module`, as with Python itself
        name, arguments = (program[2:], arguments) if program != "-m" else ("".join(arguments[:1]), arguments[1:])
        if not name:
            raise UsageError("-m needs the name of a module.", do="toprope run [OPTIONS] -m MODULE [ARGS...]")
        _check_module(name)
        return [sys.executable, "-m", name, *arguments]
    if program.endswith(_PYTHON_SUFFIXES):
        return [sys.executable, _python_file(program), *arguments]
    if os.path.isdir(program) and os.path.isfile(os.path.join(program, "__main__.py")):
        return [sys.executable, program, *arguments]
    if program == npu_smi.NAME or (program == yr.NAME and shutil.which(program) is None):
        return [program, *arguments]  # the one that the program would find, on the PATH of the run
    # what is installed with toprope, such as torchrun, is found where its environment is not activated, too
    found = shutil.which(program) or shutil.which(program, path=os.path.dirname(sys.executable))
    if found is not None:
        return [found, *arguments]
    if os.path.isfile(program):
        return [sys.executable, _python_file(program), *arguments]
    if os.path.isdir(program):
        raise ProgramError(
            f"there is no program {program!r}: it is a folder without a __main__.py.",
            looked_at=f"{len(list(Path(program).glob('*.py')))} files of Python in it",
            do="name the file that starts the program",
        )
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    raise ProgramError(
        f"there is no program {program!r}: no file of that name, and no command.",
        looked_at=f"{os.getcwd()}, and the {len(folders)} folders on PATH",
        do="give a Python file, -m MODULE, or a command on PATH",
    )


def _python_file(path: str) -> str:
    if not os.path.exists(path):
        raise ProgramError(f"there is no file {path!r}.", looked_at=os.getcwd(), do="check the path")
    if not os.path.isfile(path):
        raise ProgramError(f"{path!r} is not a file.", do="give a Python file, -m MODULE, or a command on PATH")
    if not os.access(path, os.R_OK):
        raise ProgramError(f"{path!r} may not be read.", do="give yourself the right to read it")
    return path


def _check_module(name: str) -> None:
    """Follow a dotted name along the folders of its packages, which importlib.util.find_spec would import."""
    # as `python -m` does, the current folder comes first
    path: Sequence[str] | None = [os.getcwd(), *sys.path]
    parts = name.split(".")
    for index in range(len(parts)):
        wanted = ".".join(parts[: index + 1])
        spec = PathFinder.find_spec(wanted, path)
        if spec is None and index == 0 and wanted:
            spec = _spec_of_other_finders(wanted)
        if spec is None:
            raise ProgramError(
                f"there is no module {name!r}" + (f": {wanted!r} is not there." if wanted != name else "."),
                looked_at=f"the current folder and the module path of {sys.executable}",
                do="check the name, or install the package in this environment",
            )
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        if path is None and index + 1 < len(parts):
            path = []


def _spec_of_other_finders(name: str) -> ModuleSpec | None:
    """Built-in and frozen modules, editable installs, and facades, which the child has if not this process."""
    for finder in sys.meta_path:
        found = None if finder is PathFinder else finder.find_spec(name, None)
        if found is not None:
            return found
    return FACADES[name].spec() if name in FACADES else None
