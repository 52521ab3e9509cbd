"""Builds the kernels of pages once for each compiler, and keeps them in the user's cache directory."""

from __future__ import annotations

import platform
from pathlib import Path

from toprope.native_build import NativeLibrary, SharedObject, Unit
from toprope.settings import Settings

__all__ = ["LIBRARY", "ensure"]

LIBRARY = "libtoprope_pages.so"
_SOURCES = Path(__file__).parent.parent / "csrc"
# No contraction: what the paths decode is equal to the bit, and a * b + c in two roundings is part of that.
_FLAGS = ("-std=c++20", "-O3", "-g0", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-w")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_OF_FILE = {"avx2": _AVX2, "avx512": _AVX512, "avx512_bf16": (*_AVX512, "-mavx512bf16", "-mavx512vbmi")}


def ensure() -> Path:
    """The shared object, made now where there is none.

    Raises:
        BuildError: no compiler, a compiler that fails, a cache directory that cannot be written, or another process
            that does not finish the same build.
    """
    machine = platform.machine()
    of_file = _OF_FILE if machine in ("x86_64", "AMD64") else {}
    units = tuple(Unit(path.stem, (path,), of_file.get(path.stem, ())) for path in sorted(_SOURCES.glob("*.cpp")))
    library = NativeLibrary(
        what="the kernels for quantised pages",
        cache=Settings.load().cache_dir / "pages",
        objects=(SharedObject(LIBRARY, units),),
        flags=_FLAGS,
        time="about 20 seconds",
        depends=(machine,),
        headers=tuple(path for path in _SOURCES.iterdir() if path.suffix in (".h", ".inl")),
        note={"machine": machine},
    )
    return library.ensure() / LIBRARY
