"""Builds the kernels of pages once for each compiler, and keeps them in the user's cache directory."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from toprope import compiling
from toprope.errors import BuildError
from toprope.settings import Settings

__all__ = ["LIBRARY", "ensure"]

LIBRARY = "libtoprope_pages.so"
_WHAT = "the kernels for quantised pages"
_SOURCES = Path(__file__).parent.parent / "csrc"
# No contraction: what the paths decode is equal to the bit, and a * b + c in two roundings is part of that.
_FLAGS = ["-std=c++20", "-O3", "-g0", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-w"]
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
_OF_FILE = {"avx2": _AVX2, "avx512": _AVX512, "avx512_bf16": [*_AVX512, "-mavx512bf16", "-mavx512vbmi"]}


def ensure() -> Path:
    """The shared object, made now where there is none.

    Raises:
        BuildError: no compiler, a compiler that fails, a cache directory that cannot be written, or another process
            that does not get done with the same build.
    """
    cache = Settings.load().cache_dir / "pages"
    stem = compiling.digest(platform.machine(), *_texts())
    compiler = compiling.compiler()
    if compiler is None:
        for folder in sorted(cache.glob(f"{stem}-*")):
            if _is_whole(folder):
                return folder / LIBRARY
        raise BuildError(
            f"{_WHAT} have to be built once, and there is no C++ compiler.",
            f"the variable CXX ({os.environ.get('CXX') or 'not set'}), g++ and clang++ on PATH; no build in {cache}",
            "install g++ 11 or newer (Debian and Ubuntu: apt install g++), or name a compiler in CXX",
        )
    folder = cache / f"{stem}-{compiling.digest(*compiling.identity(compiler))}"
    if not _is_whole(folder):
        with compiling.locked(folder, _WHAT):
            if not _is_whole(folder):
                _build(folder, compiler)
    return folder / LIBRARY


def _is_whole(folder: Path) -> bool:
    try:
        return (folder / compiling.NOTE).exists() and (folder / LIBRARY).exists()
    except PermissionError as error:
        raise BuildError(
            f"{_WHAT} cannot be read.",
            f"{error.filename}: {error.strerror}",
            "make the build readable, or name another cache directory in TOPROPE_CACHE_DIR",
        ) from error


def _texts() -> Iterator[str]:
    for path in sorted(path for path in _SOURCES.iterdir() if path.suffix in (".cpp", ".h", ".inl")):
        yield path.name
        yield path.read_text()
    yield from _FLAGS
    for flags in _OF_FILE.values():
        yield from flags


def _build(folder: Path, compiler: list[str]) -> None:
    """Makes the build aside and moves it into place whole."""
    try:
        aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise compiling.not_writable(folder.parent, error, _WHAT) from error
    begin = time.monotonic()
    compiling.tell(f"building {_WHAT} with {compiler[0]}; once, about 20 seconds")
    try:
        _compile(aside, compiler)
        compiling.put_in_place(aside, folder, {"compiler": compiler, "machine": platform.machine()}, _WHAT)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    compiling.tell(f"built in {time.monotonic() - begin:.0f} s, kept in {folder}")


def _compile(folder: Path, compiler: list[str]) -> None:
    x86 = platform.machine() in ("x86_64", "AMD64")

    def compile_one(source: Path) -> str:
        target = str(folder / f"{source.stem}.o")
        flags = _OF_FILE.get(source.stem, []) if x86 else []
        compiling.run([*compiler, *_FLAGS, *flags, "-c", str(source), "-o", target], source.name)
        return target

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compile_one, sorted(_SOURCES.glob("*.cpp"))))
    compiling.run([*compiler, "-shared", "-s", "-pthread", *objects, "-o", str(folder / LIBRARY)], LIBRARY)
    for path in objects:
        os.unlink(path)
