"""The operator whose error ended a program, and the vendor's documents about it; pure but for `read_fatal_errors`.

Called by `cli.run` for a program that failed. The records are written by `sim` and `compat.fatal_error` in the
program's processes; the vendor's documents are those of `toprope.support` and `toprope.collectives`. "has" and
"refuses" must rest on a document for this very dtype; what no document says stays "unknown". Tests:
tests/cli/test_failure.py from records made by hand, tests/cli/test_run_failed.py with real programs.
"""

from __future__ import annotations

import json
import signal
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from toprope import chips, collectives
from toprope.compat.fatal_error import SUFFIX
from toprope.compat.missing import of_the_real_one, vendor_names
from toprope.messages import Message
from toprope.sim.metrics.counters import Counters, Lack, LackRecord
from toprope.support import operator_kinds, operators_on_card, refusals

__all__ = ["CardSupport", "ChainedError", "Failure", "FatalError", "find", "on_card", "read_fatal_errors"]

_OF_LAUNCHERS = ("ChildFailedError", "CalledProcessError")
"""Errors that say that a child failed, and not why."""


@dataclass(frozen=True)
class ChainedError:
    """An error in the chain of the one that ended a process.

    Attributes:
        type: name of its class.
        text: its message.
        place: the innermost line of the program in its traceback, "file:line"; empty for none.
    """

    type: str
    text: str
    place: str


@dataclass(frozen=True)
class FatalError:
    """The error that ended a process.

    Attributes:
        pid: the process.
        rank: RANK of its environment; empty where it has none.
        errors: the error, then those that it came from.
    """

    pid: int
    rank: str
    errors: tuple[ChainedError, ...]


@dataclass(frozen=True)
class CardSupport:
    """Statement of the vendor's documents on an operator, or a name, of a real card.

    Attributes:
        verdict: "has" and "refuses" rest on a document for this very dtype; anything else is "unknown".
        text: the same for a reader.
    """

    verdict: Literal["has", "refuses", "unknown"]
    text: str


@dataclass(frozen=True)
class Failure:
    """The lack that ended a program.

    Attributes:
        record: the lack.
        card: the documents about it.
        chip: name of the chip.
        certain: whether the error is known to have ended a process; False where no process left its last error.
        rank: RANK of the process; empty where it has none.
        place: the line of the program, "file:line"; empty where it is not known.
    """

    record: LackRecord
    card: CardSupport
    chip: str
    certain: bool
    rank: str = ""
    place: str = ""


def read_fatal_errors(folder: Path) -> tuple[FatalError, ...]:
    """The errors that ended processes of a run, from its folder."""
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            errors = tuple(ChainedError(each["type"], each["text"], each["place"]) for each in facts["errors"])
            found.append(FatalError(facts["pid"], facts["rank"], errors))
        except (OSError, ValueError, KeyError):
            continue  # the process was killed while it wrote
    return tuple(found)


def find(processes: Iterable[Counters], fatal_errors: Sequence[FatalError], status: int) -> Failure | None:
    """The first lack whose error ended a process of a program that failed; None where something else ended it.

    An error that a process caught ended nothing. Where no process says what ended it (it called sys.exit in an except
    block, or multiprocessing caught the error), the last lack of all but missing names is given as uncertain, unless a
    signal from outside ended the program.

    Args:
        processes: counters of the run's processes.
        fatal_errors: the errors that ended processes.
        status: exit status of the program.
    """
    if status == 0:
        return None
    lacks = sorted(((record, one) for one in processes for record in one.lacks), key=lambda each: each[0].last_ns)
    for record, process in lacks:
        for fatal in fatal_errors:
            for error in fatal.errors:
                if record.text and record.text in error.text:
                    card = on_card(record, process.chip, process.torch_npu)
                    place = error.place if fatal.pid == process.pid else ""  # else where the parent waited for it
                    return Failure(record, card, process.chip, True, fatal.rank, place)
    if status < 0 and status != -signal.SIGABRT:
        return None
    # libraries ask for names that are not there, and go on
    likely = [each for each in lacks if each[0].lack is not Lack.NAME]
    if likely and all(error.type in _OF_LAUNCHERS for fatal in fatal_errors for error in fatal.errors[:1]):
        record, process = likely[-1]
        return Failure(record, on_card(record, process.chip, process.torch_npu), process.chip, False)
    return None


def on_card(record: LackRecord, chip: str, torch_npu: str = "") -> CardSupport:
    """Look up this lack in the vendor's documents on a real card of this chip.

    Args:
        record: the lack.
        chip: name of the chip.
        torch_npu: the release of torch_npu, as counters have it.
    """
    if record.lack is Lack.KERNEL and (release := operators_on_card.failing(record.name, torch_npu)):
        return CardSupport(
            "refuses", Message("a card has none either ({text}), and torch has none for the CPU", text=release.text)
        )
    if record.lack in (Lack.KERNEL, Lack.DTYPE):
        return _kernel(record.name, record.dtype, chip)
    if record.lack is Lack.REFUSED and record.name.startswith("hccl::"):
        newer = collectives.newer_releases(record.name, record.dtype or "", chip)
        if newer:
            return CardSupport("unknown", Message("older torch_npu refuses it too; {newer} takes it", newer=newer))
        return CardSupport("refuses", Message("the card refuses it too (torch_npu)"))
    if record.lack in (Lack.REFUSED, Lack.DIMENSIONS):
        kernels = sorted({row.kernel_of(record.name) for row in _rows(record.name, chip)})
        return CardSupport("refuses", Message("the card refuses it too{kernels}", kernels=_in_brackets(kernels)))
    if record.lack is Lack.FORMAT:
        return CardSupport("refuses", Message("the card refuses it too (torch_npu)"))
    if record.lack is Lack.INDEX:
        return CardSupport(
            "refuses", Message("the card found it when it was next waited for; ASCEND_LAUNCH_BLOCKING=1 shows the call")
        )
    if record.lack is Lack.BY_TEST:
        return CardSupport("unknown", Message("the program asked for this refusal (toprope.sim.faults.refuse)"))
    if record.lack is Lack.NAME:
        return _name(record.name)
    return CardSupport("unknown", Message("not known whether the card has one"))


def _kernel(operator: str, dtype: str | None, chip: str) -> CardSupport:
    """All overloads of the operator have to agree where the overload is not known."""
    rows = _rows(operator, chip)
    kernels = sorted({row.kernel_of(operator) for row in rows})
    first = [row for row in rows if any(operand.position == 0 for operand in row.operands)]
    if rows and dtype is None:
        return CardSupport("has", Message("the card has one{kernels}", kernels=_in_brackets(kernels)))
    if first and all(dtype in row.supported and dtype not in row.refused for row in first):
        return CardSupport("has", Message("the card has one{kernels}", kernels=_in_brackets(kernels)))
    if first and all(dtype in row.refused for row in first):
        return CardSupport("refuses", Message("the card refuses it too{kernels}", kernels=_in_brackets(kernels)))
    if rows:
        return CardSupport(
            "unknown",
            Message("not known whether the card has one for this dtype{kernels}", kernels=_in_brackets(kernels)),
        )
    if not operator_kinds.assumed(operator.partition(".")[0]):
        return CardSupport("unknown", Message("the vendor has such an operator, not known for which dtypes"))
    return CardSupport("unknown", Message("not known whether the card has one"))


def _rows(operator: str, chip: str) -> list[refusals.Row]:
    base, _, overload = operator.partition(".")
    fitting = {f"{base}.*", operator}

    def is_of(name: str) -> bool:
        return name in fitting if overload else name.partition(".")[0] == base

    return [row for row in refusals.rows(chips.get(chip)) if any(map(is_of, row.operators))]


def _name(name: str) -> CardSupport:
    full = f"torch_npu.{name.removeprefix('torch.')}" if name.startswith("torch.npu.") else name
    module, _, last = full.rpartition(".")
    if module == "torch_npu.npu" and last in _names_of_torch_npu():
        return CardSupport("has", Message("the real torch_npu has it"))
    vendor = vendor_names().get(full.partition(".")[0])
    has = vendor is not None and (full in vendor["modules"] or last in vendor["modules"].get(module, ()))
    return CardSupport(
        "has" if has else "unknown", of_the_real_one(full) or Message("not known whether the real package has it")
    )


@cache
def _names_of_torch_npu() -> frozenset[str]:
    text = resources.files("toprope.sim.npu").joinpath("names.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return frozenset(name for kind in ("must", "should", "could") for name in data[kind])


def _in_brackets(kernels: Sequence[str]) -> str:
    return f" ({', '.join(kernels)})" if kernels else ""
