"""torch's samples of operators on a card that follows the vendor's documents: what they refuse is refused, and no more.

Holds csrc/core/documents.cpp and csrc/torch/fallback.cpp against support/refusals.toml; tests/sim/test_simulated.py
runs this module.

Each operator that torch runs on the card is seen on its way, and toprope.support.refusals is asked what the chip says
of it: a call raises EZ1001 if and only if a row refuses one of its dtypes, and with the words of that row. Samples in
which nothing is refused give what a card without documents gives. Every run takes a fixed draw, `make soak` takes all.

Two cases cannot be seen so closely. An operator that the vendor has a kernel for, and that torch composes of others, is
checked as a whole, and its parts are not: torch's profiler tells that such a call is under way. And a kernel that calls
others refuses in the name of one of them: then a row must refuse that one for the dtype that is named.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from against_cpu import tensors

pytest.importorskip("expecttest", reason="torch's database of operators needs expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from test_samples import Outcome, draw, run, samples, to_card

from toprope import chips
from toprope.sim.native import native
from toprope.support import refusals

SIM = "910B3x1"

CHIP = chips.get("910B3")
DTYPES = (torch.float32, torch.float64, torch.complex64, torch.bfloat16)
DRAWN, SAMPLES = 40, 6
NAMES = {vendor: dtype for dtype, vendor in refusals.VENDOR_NAMES.items()}
CAST = "npu::npu_dtype_cast"

# Of two operands that are both refused the card names the first in torch's schema (the bias), the vendor's kernel the
# first that it checks (a matrix).
NAMES_ANOTHER_OPERAND = {"aten::addmm", "aten::baddbmm"}

# Types that torch_npu's own code refuses before there is a kernel (checks.cpp): no row of the table.
OWN_CHECKS = ("svd_npu only supported Float", "upsample_binlinear_2d not support")

TABLE = refusals.table(CHIP)
BY_FUNCTION: dict[str, list[refusals.Row]] = {}
for row in refusals.rows(CHIP):
    for operator in row.operators:
        BY_FUNCTION.setdefault(operator.partition("::")[2].partition(".")[0], []).append(row)

met: Counter[str] = Counter()


def dtype_of(value: Any) -> Any:
    """What a kernel of the card sees of an argument: dtypes of tensors on the card and of the result."""
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, torch.Tensor):
        return str(value.dtype) if value.device.type == "npu" else None
    if isinstance(value, list | tuple):
        found = [dtype_of(item) for item in value if isinstance(item, torch.Tensor)]
        return [name for name in found if name is not None] or None
    return None


def expected(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> refusals.Refusal | None:
    """What the documents say to a call; a cast on the card is an operator of the vendor's own."""
    given = [
        args[place] if place < len(args) else kwargs.get(argument.name)
        for place, argument in enumerate(function._schema.arguments)
    ]
    name, overload = function._schema.name, function._schema.overload_name
    if name == "aten::copy_":
        to, source = given[0], given[1]
        is_cast = to.device.type == source.device.type == "npu" and to.dtype != source.dtype
        return refusals.refusal(CAST, [str(source.dtype), str(to.dtype)], CHIP) if is_cast else None
    return refusals.refusal(f"{name}.{overload}" if overload else name, [dtype_of(value) for value in given], CHIP)


def unstamped(text: str) -> str:
    """The vendor's text without times and process numbers, as Refusal.text has it."""
    text = re.sub(r"(?<=\[ERROR\] )\S+ \(PID:\d+, Device:-?\d+, RankID:-?\d+\) ", "", text)
    return re.sub(r"\[PID: \d+\] \S+ (?=AclNN)", "", text)


def of_a_row(text: str) -> bool:
    """Whether some row says this: the operator, its kernel, the dtype and the sentence."""
    function = text.partition(":")[0]
    named = re.search(r"DT_\w+", text)  # the first one, before the list of those that are supported
    dtype = NAMES[named[0]] if named else ""
    return any(
        refusals.Refusal(f"aten::{function}", dtype, operand, CHIP.name, row).text == unstamped(text)
        for row in BY_FUNCTION.get(function, ())
        if dtype in row.refused
        for operand in row.operands
    )


class Watch(TorchDispatchMode):
    """Holds each operator on its way to the card against the documents."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.wrong: list[str] = []
        self.ran_though_refused: dict[str, str] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        says = expected(function, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except RuntimeError as error:
            if "EZ1001" in str(error):
                self.judge(function._schema.name, says, str(error))
            raise
        if says is not None:
            self.ran_though_refused[function._schema.name] = f"{says.dtype}, {says.source}"
        return result

    def judge(self, function: str, says: refusals.Refusal | None, text: str) -> None:
        self.refused.append(function)
        if function in NAMES_ANOTHER_OPERAND and says is not None and of_a_row(text):
            return
        if says is not None and says.text != unstamped(text):
            self.wrong.append(f"{function}: {unstamped(text)!r} instead of {says.text!r}")


@contextmanager
def documents(obeyed: bool) -> Iterator[None]:
    native().obey_documents(int(obeyed))
    try:
        yield
    finally:
        native().obey_documents(1)


@cache
def is_composed(name: str) -> bool:
    """Whether torch composes an operator of others, while the vendor documents a kernel for the whole."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None) if name.startswith("aten::") else None
    for overload in packet.overloads() if packet is not None else ():
        operator = getattr(packet, overload)
        documented = f"{name}.*" in TABLE or operator.name() in TABLE
        if documented and operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            return True
    return False


def parts_of_composed(call: Callable[[], Any]) -> set[str]:
    """The operators that ran in a call as a part of one that torch composes, and the vendor has a kernel for."""
    with torch.autograd.profiler.profile() as profile:
        call()
    found = set()
    for event in profile.function_events:
        parent = event.cpu_parent
        while parent is not None and not is_composed(parent.name):
            parent = parent.cpu_parent
        if parent is not None:
            found.add(event.name)
    return found


def differ(one: Outcome, other: Outcome) -> str:
    """What is different between a card with documents and one without; "" where nothing is."""
    if (type(one.error), str(one.error)) != (type(other.error), str(other.error)):
        return f"{one.error!r} with documents, {other.error!r} without"
    try:
        ours, theirs = (on_host(outcome.result) for outcome in (one, other))
        assert_close(ours, theirs, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return ""


def on_host(tree: Any) -> list[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex numbers of half precision are experimental, says torch
        return [tensor.detach().cpu() for tensor in tensors(tree)]


def takes_first_argument(info: Any) -> bool:
    """Whether the function of a sample is the operator itself, with the sample's input as its first argument."""
    return getattr(torch._C._VariableFunctions, info.name, None) is not None and info.op is getattr(
        torch, info.name, None
    )


def cases() -> Iterator[Any]:
    """The operators of the draw and the others, each with the dtypes that it has."""
    for case in draw(DRAWN):
        info = case.values[0]
        for dtype in DTYPES:
            if dtype in info.dtypes:
                yield pytest.param(info, dtype, id=f"{case.id}-{dtype}".replace("torch.", ""), marks=case.marks)


@pytest.mark.parametrize(("info", "dtype"), list(cases()))
def test_exactly_the_rows_are_refused(info: Any, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    for sample in samples(info, dtype, SAMPLES):
        with documents(obeyed=False):
            given_plain = to_card(sample)
            plain = run(info, given_plain, "npu")
        given = to_card(sample)
        with Watch() as watch:
            card = run(info, given, "npu")
        text = str(card.error or "")
        assert watch.wrong == []
        if "EZ1001" in text:
            met[f"{name} refused"] += 1
            assert of_a_row(text), text
            assert isinstance(card.error, RuntimeError)
        elif text.startswith(OWN_CHECKS):
            met[f"{name} refused by torch_npu"] += 1
            assert "ERR01002 OPS invalid type" in text
            assert dtype is not torch.float32
        else:
            met[f"{name} ran"] += 1
            whole = TABLE.get(f"aten::{info.name}.*", {}).get(0, frozenset())
            assert not (takes_first_argument(info) and isinstance(sample[0], torch.Tensor) and name in whole)
            if not watch.refused:
                unwatched = run(info, to_card(sample), "npu")  # a few of torch's functions do not bear to be watched
                assert differ(unwatched, plain) == ""
        if watch.ran_though_refused:  # as a part of what is refused or taken as a whole
            again = to_card(sample)
            parts = parts_of_composed(lambda: run(info, again, "npu"))  # noqa: B023 - called here
            assert set(watch.ran_though_refused) <= parts, (watch.ran_though_refused, parts)


def test_both_were_met() -> None:
    if not met:
        pytest.skip("nothing was drawn")
    print(dict(sorted(met.items())))
    assert met["float64 refused"] > 10
    assert met["complex64 refused"] > 10
    assert met["float32 ran"] > 50
    assert met["bfloat16 ran"] > 50
