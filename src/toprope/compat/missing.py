"""Errors for names and modules that a facade does not have: they say whether the real package has them.

Each facade module ends with `__getattr__ = missing_from(__name__)`. The vendors' names are data:
support/vendor_names.toml, support/npu_operators.toml and torch_npu/names.toml, which scripts write. The kinds of errors
are Python's: AttributeError, so that hasattr works, and ImportError where the bytecode of the caller is `from ...
import`. The sentences are free. cli/reports/failure.py shows the same answer for a program that ended with such an
error. Tests: tests/compat/test_vendor_names.py, tests/compat/test_torch_npu_facade.py.
"""

from __future__ import annotations

import copy
import functools
import sys
import tomllib
from collections.abc import Callable
from opcode import opmap
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from toprope.support.npu_operators import npu_operators
from toprope.support.vendor_names import exported_names, suggestion

__all__ = ["missing_from", "not_simulated", "note_missing", "of_the_real_one", "vendor_names"]

_COMPILED = ("dataflow.data_wrapper", "dataflow.dflow_wrapper", "dataflow.flow_func.flowfunc_wrapper")
"""Modules of facades that stand for the compiled part of the real package."""

_OPERATORS: dict[str, tuple[Literal["npu", "atb"], ...]] = {
    "torch_npu": ("npu", "atb"),
    "torch_npu.atb": ("atb",),
    "torch.ops.npu": ("npu",),
    "torch.ops.atb": ("atb",),
}
"""Places where programs look for operators of torch_npu, and the namespaces of those that are there."""


@functools.cache
def vendor_names() -> dict[str, Any]:
    """Return the vendors' names: by foreign name, its `source`, and the names of its `modules`.

    Those at the top of torch_npu are completed by the ones of its wheel, whose operators the repository does not name.
    """
    found = copy.deepcopy(exported_names())
    wheel = tomllib.loads((Path(__file__).parent / "torch_npu" / "names.toml").read_text(encoding="utf-8"))
    modules = found["torch_npu"]["modules"]
    modules["torch_npu"] = sorted({*modules["torch_npu"], *wheel["names"]})
    for name in wheel["modules"]:
        modules.setdefault(f"torch_npu.{name}", [])
    return found


def of_the_real_one(name: str) -> str:
    """Say whether the real package has an API that its facade lacks; "" where the real package is not known.

    Args:
        name: of a module, or of a name in a module, with all its parts: "torchair.ge", "torch.ops.npu.npu_ifmr".
    """
    module, _, last = name.rpartition(".")
    top = "torch_npu" if module in _OPERATORS else name.partition(".")[0]
    vendor = vendor_names().get(top)
    if vendor is None:
        return ""
    if about := _operator(module, last):
        return f"the real {top} has it ({about}), toprope does not simulate it"
    if name in vendor["modules"] or last in vendor["modules"].get(module, ()):
        return f"the real {top} has it ({vendor['source']}), toprope does not simulate it"
    if "._C." in name or module in _COMPILED:
        return f"the names of the compiled part of the real {top} are in no list, so that it may have it"
    near = suggestion(last, _known(module, vendor))
    meant = f"; did you mean {module}.{near}?" if near else ""
    return f"it is not one of the documented names of the real {top} ({vendor['source']}){meant}"


def _known(module: str, vendor: dict[str, Any]) -> set[str]:
    """Names that a module of the real package has, its operators and its submodules included."""
    operators = {full.partition(".")[0] for space in _OPERATORS.get(module, ()) for full in npu_operators()[space]}
    inside = {name.rpartition(".")[2] for name in vendor["modules"] if name.rpartition(".")[0] == module}
    return {*vendor["modules"].get(module, ()), *operators, *inside}


def _operator(module: str, name: str) -> str:
    """Place, schema and page of an operator in the real package; "" for any other name.

    A program may look for it in the wrong one of the places where operators are.
    """
    table = npu_operators()
    for space in _OPERATORS.get(module, ()):
        schema = table[space].get(name) or next(
            (text for full, text in table[space].items() if full.partition(".")[0] == name), ""
        )
        if schema:
            break
    else:
        return ""
    at_top = name in vendor_names()["torch_npu"]["modules"]["torch_npu"]
    places = [f"torch.ops.{space}", *(["torch_npu"] if at_top else []), *(["torch_npu.atb"] if space == "atb" else [])]
    where = "" if module in places else f" as {places[-1]}.{name}"
    page = (
        f"page {table['pages_at']}/{table['pages'][name]} of Ascend/op-plugin"
        if name in table["pages"]
        else f"without a page, from {table['source'].partition(':')[0]}"
    )
    instead = f", deprecated in favour of {table['deprecated'][name]}" if table["deprecated"].get(name) else ""
    return f"an operator{where}, {name}{schema}, {page}{instead}"


def note_missing(name: str, text: str) -> None:
    """Keep the error of a missing name for the report of the run, where this process has the simulated card."""
    lacks = sys.modules.get("toprope.sim.metrics.python_errors")
    if lacks is not None:
        lacks.note_missing(name, text)


def not_simulated(name: str, why: str) -> NotImplementedError:
    """Make the error of a function that a facade has by name, and that would need a card or its toolkit.

    Args:
        name: the function with its module: "torch_npu.utils.cpp_extension.NpuExtension".
        why: what it would need, as the end of a sentence.
    """
    text = f"toprope's facade of {name.partition('.')[0]} does not have what {name} does: {why}."
    note_missing(name, text)
    return NotImplementedError(text)


def _has_module(package: str, name: str) -> bool:
    """Look for a module of this name in the folders of a facade's package."""
    owner = sys.modules.get(package) or sys.modules.get(f"toprope.compat.{package}")
    folders = [Path(folder, name) for folder in vars(owner).get("__path__", ())] if owner is not None else []
    return any(folder.with_suffix(".py").is_file() or (folder / "__init__.py").is_file() for folder in folders)


def missing_from(module: str) -> Callable[[str], Any]:
    """Make the `__getattr__` of a facade's module, which raises the error of a missing name.

    An AttributeError, so that hasattr works as for any module; an ImportError where `from module import name` asks,
    which otherwise would drop the text.

    Args:
        module: its `__name__`.
    """
    # a facade of torch_npu may be imported under toprope's own name, by tests and tools
    module = module.removeprefix("toprope.compat.")
    top = module.partition(".")[0]

    def missing(name: str) -> Any:
        if name.startswith("__"):  # Python's own questions, such as __wrapped__, need no explanation
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        text = f"toprope's facade of {top} does not have {module}.{name}"
        if why := of_the_real_one(f"{module}.{name}"):
            text = f"{text}: {why}"
        if not _has_module(module, name):  # else an import is about to bring it
            note_missing(f"{module}.{name}", text)
        frame: FrameType | None = sys._getframe(1)
        if frame is not None and frame.f_code.co_name == "__getattr__":  # of a module that answers some names itself
            frame = frame.f_back
        if frame is not None and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]:
            raise ImportError(text, name=module)
        raise AttributeError(text, name=name)

    return missing
