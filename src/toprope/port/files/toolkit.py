"""Places of CUDA's toolkit in scripts, build files and descriptions of images and jobs.

Called by `text` for each line; the rule's text is `rules.TOOLKIT`, which is reported once a file. Tests:
tests/port/test_port_toolkit.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from toprope.port.files.kinds import FileKind

__all__ = ["build_commands", "given_cards", "toolkit"]

_LOADED = re.compile(
    r"(?:^|[;&|]|\bthen\b|\bdo\b)\s*(?:(?:module|spack)\s+(?:load|add|try-load)|ml(?:\s+load)?)\b(?P<names>[^#\n;&|]*)"
)
_IS_CUDAS = re.compile(r"[^\s\"']*(?:cuda|cudnn|nccl|nvhpc)[^\s\"']*", re.I)
_COMMAND = re.compile(
    r"(?:^|[;&|(]|\b(?:RUN|srun|exec|sudo|then|do)\b)\s*(?P<name>(?:nsys|ncu|nvprof|cuda-gdb|cuda-memcheck|compute-sanitizer"
    r"|nvidia-cuda-mps-control))(?=\s|$)"
    r"|\|\s*(?P<piped>nvidia-cuda-mps-control)\b|\bFORCE_CUDA=[\"']?1\b|\bexport\s+NCCL_\w+=\S*"
    r"|\bnvidia-cuda-toolkit\b|\blib(?:cudnn|nccl)\d?(?:-dev)?(?=[\s=]|$)"
)
_MAKE = re.compile(
    r"\b(?:find_package|find_dependency)\s*\(\s*(?:CUDA\w*|CUDNN|NCCL)\b[^)]*\)?|\benable_language\s*\([^)]*\bCUDA\b[^)]*\)?"
    r"|\bproject\s*\([^)]*\bCUDA\b[^)]*\)?|^\s*LANGUAGES\b[^)#]*\bCUDA\b|\bcuda_add_\w+|\bcuda_compile\w*"
    r"|\binclude\s*\(\s*FindCUDA\w*\s*\)|\bcheck_language\s*\(\s*CUDA\s*\)|\b(?:CMAKE_)?CUDA_ARCHITECTURES\b"
    r"|\bLANGUAGE\s+CUDA\b|\bCUDA::\w+",
    re.I,
)
"""CMake's commands; their names may be in any case. A call that goes on in the next line is known by its first one."""
_MESON = re.compile(r"\b(?:add_languages|project|dependency)\s*\([^)]*[\"']cuda[\"']")
_COMPILER = re.compile(
    r"(?:[\w./$(){}-]*/)?(?<![\w.])nvcc(?![\w.-])|(?<!\S)-l(?:cudart|cublas|cudnn|nccl|curand|cufft)\b"
)
_GIVEN = re.compile(
    r"\bnvidia\.com/(?:gpu(?:\.\w+)?|mig-[\w.-]+)\b|\bnvidia/cuda:\S*|\bnvcr\.io/[^\s\"',]+|\bpytorch/pytorch:\S*cuda\S*"
    r"|^\s*accelerators:\s*[\"'{]?\s*(?:[VAPHTLK]\d{1,3}\w?|RTX\w*)(?:-\w+)?:?\s*\d*",
)
_NATIVE = re.compile(r"(?<!\S)(?:[\"'=])?--nv(?![\w=-])")
_STARTS = re.compile(r"\b(?:singularity|apptainer)\b|^\s*--nv\b", re.I)


def toolkit(line: str) -> Iterator[tuple[int, int]]:
    """Find modules, tools, packages and variables of CUDA's toolkit in a line of a script or of an image."""
    for found in _LOADED.finditer(line):
        for name in _IS_CUDAS.finditer(found["names"]):
            yield found.start("names") + name.start(), found.start("names") + name.end()
    for found in _COMMAND.finditer(line):
        group = next((each for each in ("name", "piped") if found[each]), 0)
        yield found.span(group)


def build_commands(line: str) -> Iterator[tuple[int, int]]:
    """Find what builds with CUDA in a line of CMake's, Meson's or make's files."""
    for pattern in (_MAKE, _MESON, _COMPILER):
        for found in pattern.finditer(line):
            yield found.span()


def given_cards(line: str, kind: FileKind) -> Iterator[tuple[int, int]]:
    """Find images for CUDA and NVIDIA's cards in a description of a job, and the option for them of Singularity."""
    if kind in (FileKind.CONFIG, FileKind.SHELL):
        for found in _GIVEN.finditer(line):
            yield found.span()
    if kind is not FileKind.CONFIG and _STARTS.search(line):
        for found in _NATIVE.finditer(line):
            yield found.span()
