"""Kinds of files, recognised by their names.

A further kind of file is a pattern here and a function in `text`. Tests: tests/port/test_port_unseen_second.py,
tests/port/test_port_unseen.py, tests/port/test_port_unseen_silent.py.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import PurePosixPath

__all__ = ["FileKind", "kind_of"]


class FileKind(StrEnum):
    """A kind of file that has something to say about CUDA."""

    PYTHON = "Python"
    NOTEBOOK = "notebook"
    REQUIREMENTS = "requirements"
    ENVIRONMENT = "conda environment"
    PROJECT = "pyproject.toml, setup.cfg"
    IMAGE = "Dockerfile, compose file"
    WORKFLOW = "CI"
    SHELL = "shell script"
    BUILD = "build file"
    DOCUMENT = "document"
    CONFIG = "configuration"
    CUDA = "CUDA source"
    CPP = "C or C++ source"


_SUFFIXES = {
    ".py": FileKind.PYTHON, ".pyi": FileKind.PYTHON, ".pyw": FileKind.PYTHON, ".ipynb": FileKind.NOTEBOOK,
    ".sh": FileKind.SHELL, ".bash": FileKind.SHELL, ".slurm": FileKind.SHELL, ".sbatch": FileKind.SHELL,
    ".pbs": FileKind.SHELL, ".lsf": FileKind.SHELL, ".qsub": FileKind.SHELL, ".job": FileKind.SHELL,
    ".sub": FileKind.SHELL, ".zsh": FileKind.SHELL,
    ".cmake": FileKind.BUILD, ".mk": FileKind.BUILD, ".def": FileKind.IMAGE,
    ".cu": FileKind.CUDA, ".cuh": FileKind.CUDA, ".c": FileKind.CPP, ".cc": FileKind.CPP, ".cpp": FileKind.CPP,
    ".cxx": FileKind.CPP, ".h": FileKind.CPP, ".hh": FileKind.CPP, ".hpp": FileKind.CPP,
    ".md": FileKind.DOCUMENT, ".rst": FileKind.DOCUMENT, ".json": FileKind.CONFIG, ".toml": FileKind.CONFIG,
    ".ini": FileKind.CONFIG, ".cfg": FileKind.CONFIG,
}  # fmt: skip
_BUILDS = ("cmakelists.txt", "makefile", "gnumakefile", "meson.build")
_WORKFLOWS = ((".github", "workflows"), (".gitlab-ci.yml",), (".circleci",), (".buildkite",), ("azure-pipelines.yml",))


def kind_of(path: str) -> FileKind | None:
    """The kind of a file by its name; None where there is nothing to say about it.

    Args:
        path: the file's path, with slashes.
    """
    place = PurePosixPath(path)
    name, suffix = place.name.lower(), place.suffix.lower()
    if suffix in (".yml", ".yaml"):
        parts = tuple(part.lower() for part in place.parts)
        if any(_within(parts, wanted) for wanted in _WORKFLOWS):
            return FileKind.WORKFLOW
        if "compose" in name or place.stem.lower() == "cog":  # Replicate's description of an image
            return FileKind.IMAGE
        return FileKind.ENVIRONMENT if "env" in name or "conda" in name else FileKind.CONFIG
    if suffix in (".txt", ".in") and (
        "requirement" in name or "constraint" in name or "requirement" in place.parent.name.lower()
    ):
        return None if place.stem.lower().endswith("-cuda") else FileKind.REQUIREMENTS  # by its name it is for CUDA
    if name in ("pyproject.toml", "setup.cfg", "pipfile"):
        return FileKind.PROJECT
    if name in ("devcontainer.json", ".devcontainer.json"):
        return FileKind.IMAGE
    if name in _BUILDS or name.startswith("makefile."):
        return FileKind.BUILD
    if (
        name.startswith(("dockerfile", "singularity."))
        or suffix == ".dockerfile"
        or name in ("containerfile", "singularity")
    ):
        return FileKind.IMAGE
    return _SUFFIXES.get(suffix)


def _within(parts: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return any(parts[at : at + len(wanted)] == wanted for at in range(len(parts)))
