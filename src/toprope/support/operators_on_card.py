"""Operators of torch that run on the card in a release of torch_npu; pure, from operators_by_release.toml.

The simulated card runs the others on the host (sim/installation/host_operators.py); the port's report and cli show
them. A release is a branch of Ascend/pytorch, or a published wheel; scripts/operator_support writes the file. An
operator that no stored source mentions is *unknown*, never "on the card". Nothing here imports torch, and the file is
read when it is first asked. Tests: tests/support/test_operators_on_card.py; test_fallback_warnings.py against warnings
of real cards; for the report of a run tests/cli/test_report.py.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from toprope.errors import UsageError
from toprope.messages import Message

__all__ = [
    "FILE",
    "Kind",
    "Release",
    "Status",
    "failing",
    "find_release",
    "host_operators",
    "perhaps_on_host",
    "releases",
    "status",
]

FILE = Path(__file__).with_name("operators_by_release.toml")
MASTER = "master"
_BEFORE_910B = ("Ascend 910 (", "Ascend 310P")
_OWN = ("npu", "atb")
"""Namespaces of torch_npu's own operators, which have kernels for the card alone."""


class Kind(StrEnum):
    """Places where an operator runs."""

    ON_CARD = "on_card"
    OLD_ROAD = "old_road"
    """On the card, with a kernel of the older interface only, which is compiled when it is first used."""
    HOST = "host"
    PARTLY_HOST = "partly_host"
    """A kernel is registered, and computes on the host for some arguments, dtypes or chips."""
    COMPOSED = "composed"
    """torch composes it of other operators, which count in its place."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Release:
    """A release of torch_npu whose source is stored.

    Attributes:
        release: name of op-plugin's branch, such as "7.2.0"; "master"; the version, where a wheel was read.
        torch: the torch that it is for, such as "2.7.1".
        branch: the branch of Ascend/pytorch, or the wheel's file name.
        pytorch: commit of Ascend/pytorch.
        op_plugin: commit of Ascend/op-plugin that it pins.
        date: day of the commit of Ascend/pytorch.
        versions: versions of torch_npu that the vendor lists for it.
        can_refuse: whether TORCH_NPU_FALLBACK_CPU_DISABLE is known to it.
        position: its place in the histories.
    """

    release: str
    torch: str
    branch: str
    pytorch: str
    op_plugin: str
    date: str
    versions: tuple[str, ...]
    can_refuse: bool
    position: int

    @property
    def text(self) -> str:
        """A few words for a reader: "torch_npu 2.7.1.post2 (release 7.3.0, for torch 2.7.1)"."""
        if self.versions == (self.release,):
            return f"torch_npu {self.release}"
        version = f"torch_npu {self.versions[0]}" if self.versions else "torch_npu"
        name = Message("release {release}", release=self.release)
        if self.release == MASTER:
            name = Message("master of {date}", date=self.date)
        return Message("{version} ({name}, for torch {torch})", version=version, name=name, torch=self.torch)


@dataclass(frozen=True)
class Status:
    """Answer of a release's source about an operator.

    Attributes:
        operator: the operator that counts, "aten::isin.Tensor_Tensor_out" for "aten::isin.Tensor_Tensor".
        kind: where it runs.
        reason: why, in a few words.
        release: the release.
        source: the file that says so, with its commit.
        fails: whether it ends in an error there: it falls to the host, and torch has no kernel for the CPU.
        dtypes: dtypes for which it computes on the host, where that depends on them.
        registered: whether the release registers a kernel for it.
    """

    operator: str
    kind: Kind
    reason: str
    release: Release
    source: str
    fails: bool = False
    dtypes: frozenset[str] = frozenset()
    registered: bool = False


@functools.cache
def releases() -> tuple[Release, ...]:
    """All releases, the oldest first; one for each torch."""
    import tomllib  # not needed by those who only import

    # every process with a card asks for its release: the histories, most of the file, are left unread
    head = FILE.read_text(encoding="utf-8").partition("\n[[history]]")[0]
    return tuple(_releases(tomllib.loads(head)["release"]))


def find_release(asked: str | None = None, torch: str | None = None) -> Release:
    """Return the release that a text names, or the newest for a torch.

    Args:
        asked: a version of torch_npu ("2.1.0.post8"), a release ("7.2.0", "master"), or a branch ("v2.7.1-7.2.0");
            None for the newest release for `torch`, or, where the source of none is stored, for any.
        torch: version of torch; None for the one that is installed.

    Raises:
        UsageError: nothing of that name is stored.
    """
    if torch is None:
        torch = _installed_torch()
    if not asked:
        named = [one for one in releases() if one.release != MASTER]
        return max(_for_torch(named, torch) or named, key=_age)
    exact = [one for one in releases() if asked in one.versions or asked == one.branch != MASTER]
    if exact:
        return exact[-1]
    named = [one for one in releases() if one.release == asked]
    if not named:
        versions = sorted({version for one in releases() for version in one.versions}, key=_numbers)
        raise UsageError(
            f"no source of torch_npu {asked} is stored here.",
            looked_at=f"{FILE.name}: {', '.join(versions)}; releases {', '.join(_names())}",
            do="name one of these, such as the next older version; more: toprope explain operators_by_release",
        )
    return max(_for_torch(named, torch) or named, key=_age)


def status(
    operator: str,
    torch: str | None = None,
    release: str | Release | None = None,
    dtype: str | None = None,
    chip: str | None = None,
) -> Status:
    """Return where an operator runs.

    Args:
        operator: torch's name with its overload: "isin.Tensor_Tensor_out" or "aten::isin.Tensor_Tensor_out".
        torch: version of torch; None for the one that is installed.
        release: as `find_release` takes it, or what it gave.
        dtype: dtype of the first operand; None where it is not known.
        chip: name of the chip; None for one that is not older than the 910B.

    Raises:
        UsageError: no source of that release is stored.
    """
    found = release if isinstance(release, Release) else find_release(release, torch)
    space, _, name = operator.rpartition("::")
    if space in _OWN:
        return Status(operator, Kind.ON_CARD, "an operator of torch_npu itself", found, _source(found))
    if space not in ("", "aten"):
        reason = "an operator of another library: no kernel, unless a package for the card brings one"
        return Status(operator, Kind.HOST, reason, found, _source(found))
    table = _table()
    letter = table.letter(name, found)
    if letter == "-" and name in table.delegates:
        name = table.delegates[name]
        letter = table.letter(name, found)
    full = f"aten::{name}"
    if letter == "-":
        return _without_kernel(name, found)
    source = _source(found)
    if letter in "no":
        new = letter == "n"
        reason = "a kernel of the newer interface (aclnn)" if new else "a kernel of the older interface only (aclop)"
        return Status(full, Kind.ON_CARD if new else Kind.OLD_ROAD, reason, found, source, registered=True)
    if letter == "u":
        reason = Message("a kernel is registered, whose source is not stored: it may compute on the host")
        return Status(full, Kind.PARTLY_HOST, reason, found, source, registered=True)
    source = f"Ascend/op-plugin: {table.host_code[name]} (as of the newest release that has it)"
    dtypes = frozenset(table.dtypes.get(name, "").split()) if letter == "d" else frozenset()
    kind, reason = _with_host_code(letter, dtypes, dtype, chip)
    return Status(full, kind, reason, found, source, dtypes=dtypes, registered=True)


def host_operators(release: Release, chip: str | None = None) -> Iterator[tuple[str, Status]]:
    """All operators of ATen that a release leaves to the host, for all dtypes or some, by name without "aten::".

    Those that compute on the host for some arguments only are not among them.
    """
    table = _table()
    for name in sorted({*table.histories, *table.delegates, *table.host, *table.nowhere}):
        found = status(name, release=release, chip=chip)
        if found.kind is Kind.HOST or found.dtypes:
            yield name, found


def failing(operator: str, branch: str) -> Release | None:
    """Return the release, by its branch, if an operator fails there: it has no kernel, and torch none for the CPU.

    Args:
        operator: torch's name, "aten::isin.Tensor_Tensor_out".
        branch: as of `Release`; "" where it is not known.
    """
    if not branch:
        return None
    found = status(operator, release=find_release(branch))
    return found.release if found.fails else None


def perhaps_on_host(release: Release) -> dict[str, str]:
    """Return operators that a release computes on the host for some arguments, or perhaps does, with the reason.

    By name without an overload, "aten::std": whether a call was one of those is not known.
    """
    table = _table()
    letters = {name: table.letter(name, release) for name in sorted(table.histories)}
    return {
        f"aten::{name.partition('.')[0]}": status(name, release=release).reason
        for name, letter in letters.items()
        if letter in ("a", "u")
    }


def _with_host_code(letter: str, dtypes: frozenset[str], dtype: str | None, chip: str | None) -> tuple[Kind, str]:
    if letter == "h":
        return Kind.HOST, "the kernel that is registered computes on the host"
    if letter == "a":
        return Kind.PARTLY_HOST, Message("the kernel computes on the host for some arguments")
    if letter == "d":
        listed = ", ".join(sorted(dtypes))
        if dtype is None:
            return Kind.PARTLY_HOST, f"the kernel computes on the host for {listed}"
        if dtype.removeprefix("torch.") in dtypes:
            return Kind.HOST, f"the kernel computes on the host for {listed}"
        return Kind.ON_CARD, f"a kernel of the newer interface (aclnn), but for {listed}"
    from toprope import chips  # only few ask for it

    if chip is not None and chips.get(chip).family.startswith(_BEFORE_910B):
        return Kind.HOST, "the kernel computes on the host on chips before the 910B"
    return Kind.ON_CARD, "a kernel of the newer interface (aclnn), but on chips before the 910B"


def _without_kernel(name: str, release: Release) -> Status:
    table, full = _table(), f"aten::{name}"
    if name in table.composed:
        reason = "torch composes it of other operators"
        return Status(full, Kind.COMPOSED, reason, release, f"torch {table.torch}")
    if name in table.host or name in table.nowhere or name in table.histories:
        fails = name in table.nowhere
        reason = "no kernel" + (", and torch has none for the CPU: it fails" if fails else "")
        return Status(full, Kind.HOST, reason, release, _source(release), fails)
    reason = f"torch {table.torch} has no such operator, and no stored release a kernel for it"
    return Status(full, Kind.UNKNOWN, reason, release, _source(release))


def _source(release: Release) -> str:
    if release.branch.endswith(".whl"):
        return f"{release.branch}: npu_native_functions_by_codegen.yaml"
    return (
        f"Ascend/op-plugin {release.op_plugin}: op_plugin/config, Ascend/pytorch {release.pytorch}: "
        "torch_npu/csrc/aten/npu_native_functions.yaml"
    )


def _installed_torch() -> str:
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def _for_torch(found: list[Release], torch: str) -> list[Release]:
    """Those for exactly this torch, else for its minor version ("2.7")."""
    plain = torch.partition("+")[0]
    minor = ".".join(plain.split(".")[:2])
    return [one for one in found if one.torch == plain] or [
        one for one in found if ".".join(one.torch.split(".")[:2]) == minor
    ]


def _age(release: Release) -> int:
    return release.position


def _names() -> list[str]:
    return list(dict.fromkeys(one.release for one in releases()))


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


@dataclass(frozen=True)
class _Table:
    histories: Mapping[str, str]
    dtypes: Mapping[str, str]
    host_code: Mapping[str, str]
    torch: str
    composed: frozenset[str]
    host: frozenset[str]
    nowhere: frozenset[str]
    delegates: Mapping[str, str]

    def letter(self, name: str, release: Release) -> str:
        history = self.histories.get(name)
        return "-" if history is None else history[release.position]


@functools.cache
def _table() -> _Table:
    import tomllib

    data = tomllib.loads(FILE.read_text(encoding="utf-8"))
    structure = data["structure"]
    return _Table(
        {name: row["letters"].replace(" ", "") for row in data["history"] for name in row["operators"].split()},
        data["dtypes"], data["host_code"], structure["torch"],
        frozenset(structure["composed"].split()),
        frozenset(structure["host"].split()),
        frozenset(structure["nowhere"].split()),
        {name: variant for variant, names in structure["delegates"].items() for name in names.split()},
    )  # fmt: skip


def _releases(rows: list[Mapping[str, Any]]) -> Iterator[Release]:
    for position, row in enumerate(rows):
        yield Release(**{**row, "versions": tuple(row["versions"])}, position=position)
