"""C++ kernels for quantised tensors: built once for each compiler, kept in the cache directory, called by ctypes.

`codec` and `matmul` use them on CPUs; without a compiler torch does the work. The sources are in tiers/csrc. `_Page`,
`PATHS`, `_TYPES` and the arguments here repeat declarations of csrc/pages.h and csrc/api.cpp: change both. Flags of the
compiler are free, as long as the paths decode to the same bits. Tests: tests/tiers/test_pages_kernels.py, on every set
of instructions that the CPU has; encoding in tests/tiers/test_pages_formats.py.
"""

from __future__ import annotations

import ctypes
import logging
import platform
from ctypes import c_int, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch

from toprope.errors import BuildError, PageError
from toprope.native_build import NativeLibrary, SharedObject, Unit
from toprope.settings import Settings
from toprope.tiers.quant.tensor import QuantisedTensor

__all__ = ["LIBRARY", "PATHS", "Kernels", "ensure", "kernels", "why_none"]

LIBRARY = "libtoprope_pages.so"
_SOURCES = Path(__file__).parent.parent / "csrc"
# No contraction of a * b + c, so that all instruction sets decode to the same bits.
_FLAGS = ("-std=c++20", "-O3", "-g0", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-w")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_OF_FILE = {"avx2": _AVX2, "avx512": _AVX512, "avx512_bf16": (*_AVX512, "-mavx512bf16", "-mavx512vbmi")}


def ensure() -> Path:
    """Return the shared object, and build it if there is none.

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


PATHS = ("portable", "avx2", "avx512", "avx512_bf16")
"""Names of the instruction sets that kernels are compiled for, the best one last."""

_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_STREAM_BYTES = 8 * 2**20  # larger results are written past the cache, like large copies
_log = logging.getLogger("toprope")


class _Page(ctypes.Structure):
    _fields_ = (
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("rows", c_int64),
        ("columns", c_int64),
        ("global_scale", c_void_p),
        ("format", c_int32),
    )


class Kernels:
    """The built library of C++ kernels, loaded.

    Attributes:
        paths: names of the instruction sets that this CPU can run, the best one last.
    """

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        library.tp_paths.argtypes = []
        self._decode = library.tp_decode
        self._decode.argtypes = [c_void_p, c_void_p, c_int, c_int, c_int, c_int]
        self._multiply = library.tp_multiply
        self._multiply.argtypes = [c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int, c_int, c_int]
        self._encode = library.tp_encode
        self._encode.argtypes = [c_void_p, c_int, c_int64, c_int, c_int, c_void_p, c_void_p, c_void_p, c_int]
        library.tp_use_threads_of.argtypes = [c_void_p]
        library.tp_use_threads_of.restype = None
        library.tp_use_threads_of(_parallel_of_torch())
        found = library.tp_paths()
        self.paths = tuple(name for number, name in enumerate(PATHS) if found >> number & 1)

    def decode(self, page: QuantisedTensor, out: torch.Tensor, path: str | None = None) -> None:
        """Decode into a contiguous fp32 or bf16 tensor on the CPU."""
        stream = out.nbytes > _STREAM_BYTES
        self._check(
            self._decode(
                ctypes.byref(_described(page)), out.data_ptr(), _TYPES[out.dtype], self._number(path),
                torch.get_num_threads(), stream,
            )
        )  # fmt: skip

    def encode(self, values: torch.Tensor, page: QuantisedTensor, search: bool) -> None:
        """Encode contiguous fp32 or bf16 values, in rows of whole blocks, into a 4-bit tensor."""
        self._encode(
            values.data_ptr(), _TYPES[values.dtype], values.numel() // page.format.block, page.format.number, search,
            page.codes.data_ptr(), page.scales.data_ptr(),
            None if page.global_scale is None else page.global_scale.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip

    def multiply(
        self,
        page: QuantisedTensor,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
        path: str | None = None,
    ) -> None:
        """Write x @ page.T + bias to `out`; all contiguous, on the CPU and of one dtype, fp32 or bf16."""
        self._check(
            self._multiply(
                ctypes.byref(_described(page)), x.data_ptr(), x.numel() // page.columns,
                None if bias is None else bias.data_ptr(), out.data_ptr(), _TYPES[out.dtype], self._number(path),
                torch.get_num_threads(),
            )
        )  # fmt: skip

    def _number(self, path: str | None) -> int:
        return PATHS.index(self.paths[-1] if path is None else path)

    def _check(self, status: int) -> None:
        if status == 1:
            raise PageError("this CPU cannot run these kernels.", do=f"use one of {', '.join(self.paths)}")
        if status != 0:
            raise MemoryError("no memory for the activations of a product with a page")


def _parallel_of_torch() -> int | None:
    """Address of the function with which torch's operators start their threads; None if torch is built without it."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(library.GOMP_parallel, c_void_p).value  # of OpenMP, which torch's library depends on
    except (OSError, AttributeError):
        return None


def _described(page: QuantisedTensor) -> _Page:
    return _Page(
        page.codes.data_ptr(),
        page.scales.data_ptr(),
        page.rows,
        page.columns,
        None if page.global_scale is None else page.global_scale.data_ptr(),
        page.format.number,
    )


@cache
def _loaded() -> tuple[Kernels | None, str]:
    try:
        return Kernels(str(ensure())), ""
    except BuildError as error:
        _log.warning("pages are decoded by torch, many times slower than by kernels of their own: %s", error)
        return None, error.what
    except OSError as error:
        _log.warning("pages are decoded by torch, many times slower than by kernels of their own: %s", error)
        return None, f"the kernels cannot be loaded: {error}"


def kernels() -> Kernels | None:
    """The kernels, built if needed; None, after one warning in the log, if they cannot be built."""
    return _loaded()[0]


def why_none() -> str:
    """Reason why there are no kernels; empty if there are."""
    return _loaded()[1]
