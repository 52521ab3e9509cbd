"""CUDA and C++ sources: counted, and reported once a file, with their kernels and what is known to replace them.

Called by `text`. What replaces a kernel is data with sources: `toprope.support.replacements`. Held by
tests/port/test_port_sources.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from toprope.port.finding import Finding, Ported
from toprope.port.ignore import ignored_source_lines, is_ignored
from toprope.port.rule import Example, Kind, Rule
from toprope.support.replacements import for_kernels

__all__ = ["BINDING", "CUDA", "port_source"]


def _rule(code: str, title: str, why: str, source: str, examples: tuple[Example, ...]) -> Rule:
    return Rule(code, Kind.NOT_CONVERTIBLE, title, " ".join(why.split()), source, examples, "files")


CUDA = _rule(
    "TR120",
    "ops.cu, ops.cuh: kernels in CUDA C++",
    """Such a file is compiled by nvcc and runs on NVIDIA's cards (through HIP on AMD's). NPUs need a kernel in Ascend C
    and an operator that calls it, or an operator that is there already: the line names what is known to replace it, by
    the names of its kernels. Else keep a version in torch for the devices that have no kernel. The port leaves the file
    as it is.""",
    "NVIDIA's and the vendor's documentation; toprope's replacements.toml",
    (Example("__global__ void scale(float* x) { x[threadIdx.x] *= 2; }"),),
)
BINDING = _rule(
    "TR120a",
    "#include <cuda_runtime.h>, at::cuda in C++: code that needs CUDA's headers",
    """Without CUDA the file does not compile, and what calls it finds no module. Put what is CUDA's behind #ifdef, so
    that the rest of the extension can be built, and see what the line names as a replacement of its operators. Ignore
    it (`// toprope: ignore` on that line) where the build leaves the file out.""",
    "PyTorch's documentation of extensions in C++; toprope's replacements.toml",
    (
        Example(
            """
            #include <torch/extension.h>
            #include <ATen/cuda/CUDAContext.h>

            PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("nms_forward", &nms_forward); }
            """
        ),
        Example("#include <torch/extension.h>\nint two() { return 2; }", reported=False),
        Example("// uses at::cuda elsewhere\nint two() { return 2; }", reported=False),
    ),
)
_SPEAKS = re.compile(
    r"#\s*include\s*[<\"](?:cuda\w*\.h|cuda/[^>\"]+|cublas\w*(?:\.h)?|cudnn\w*\.h|cufft\w*\.h|curand\w*\.h|cusparse\w*\.h"
    r"|nccl\.h|thrust/[^>\"]+|cub/[^>\"]+|cutlass/[^>\"]+|ATen/cuda/[^>\"]+|c10/cuda/[^>\"]+|THC/[^>\"]+|ATen/cudnn/[^>\"]+)"
    r"[>\"]|\b(?:at|c10|torch)::(?:cuda\b|kCUDA\b)|\bcuda(?:Malloc|Memcpy|Stream_t|Free|LaunchKernel|DeviceSynchronize)\w*\b"
    r"|\bCHECK_CUDA\b|\bis_cuda\s*\(\)|\b__global__\b|<<<"
)
_IS_NOT_CUDA = re.compile(r"\b\w*(?:ASSERT|CHECK|assert)\w*\s*\(\s*!\s*\(?[\w.()>-]*?\bis_cuda\s*\(\)")
"""An assertion that a tensor is on the CPU."""
_KERNEL = re.compile(
    r"__global__\s+(?:__\w+__\s*(?:\([^)]*\))?\s*)*(?:static\s+|inline\s+)*void\s+(?:__\w+__\s*\([^)]*\)\s*)?(\w+)"
)
_LAUNCH = re.compile(r"<<<")
_BOUND = re.compile(r"(?:\bdef|\bimpl)\s*\(\s*\"([\w:]+)")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
_MOST_NAMES = 4


def port_source(
    data: bytes,
    path: str,
    *,
    cuda: bool,
    leave: Callable[[Finding], bool] | None = None,
    nearby: bytes = b"",
) -> Ported:
    """Look at a CUDA or C++ source. It is never changed.

    Args:
        data: its bytes.
        path: its name, for the report.
        cuda: whether it is one for CUDA by its name; a C++ source is reported where it says something of CUDA.
        leave: says of a finding that it is not wanted.
        nearby: the CUDA source of the same name. It says what the file is for, and a header next to it that only
            declares what it has needs no line of its own.
    """
    ported = Ported(path, data, data)
    ported.lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    text = data.decode("utf-8", "replace")
    code = _IS_NOT_CUDA.sub(_blank, _COMMENT.sub(_blank, text))
    first = _SPEAKS.search(code) or (re.search(r"\S.*", code) if cuda else None)
    if first is None:
        return ported
    declares = bool(nearby) and path.endswith((".cuh", ".h", ".hh", ".hpp"))
    if declares and not _KERNEL.search(code) and not _LAUNCH.search(code):
        return ported
    rule = CUDA if cuda else BINDING
    line = text.count("\n", 0, first.start()) + 1
    start = text.rfind("\n", 0, first.start()) + 1
    end = text.find("\n", start)
    whole = text[start : end if end >= 0 else len(text)].rstrip("\r")
    column = len(whole) - len(whole.lstrip()) + 1
    finding = Finding(
        rule,
        line,
        column,
        line,
        len(whole) + 1,
        whole.strip(),
        message=_said(code, text, path, cuda=cuda, nearby=nearby.decode("utf-8", "replace")),
    )
    if is_ignored(finding, ignored_source_lines(text)) or (leave is not None and leave(finding)):
        ported.ignored = 1
    else:
        ported.findings = [finding]
    return ported


def _blank(found: re.Match[str]) -> str:
    """Blanks in the place of a comment; texts stay, since they name operators and headers."""
    return found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0])


def _said(code: str, text: str, path: str, *, cuda: bool, nearby: str) -> str:
    kernels = list(dict.fromkeys(_KERNEL.findall(code)))
    bound = list(dict.fromkeys(_BOUND.findall(code)))
    launches = len(_LAUNCH.findall(code))
    lines = sum(1 for line in code.split("\n") if _SPEAKS.search(line))
    said = "CUDA source" if cuda else f"{lines} {'line' if lines == 1 else 'lines'} of CUDA in a C++ source"
    facts = []
    if kernels:
        facts.append(f"{len(kernels)} {'kernel' if len(kernels) == 1 else 'kernels'}: {_listed(kernels)}")
    if launches:
        facts.append(f"{launches} {'launch' if launches == 1 else 'launches'}")
    if bound:
        facts.append(f"operators for Python: {_listed(bound)}")
    if "WITH_CUDA" in text or "USE_CUDA" in text:
        facts.append("partly behind #ifdef")
    names = " ".join([*kernels, *bound, path.replace("\\", "/").rpartition("/")[2]])
    rows = for_kernels(names) or for_kernels(" ".join(_KERNEL.findall(_COMMENT.sub(_blank, nearby))))
    known = "; ".join(row.text for row in rows[:2])
    return f"{said}{': ' if facts else ''}{', '.join(facts)}; " + (
        f"known to replace it: {known}" if known else "nothing is known to replace it"
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
