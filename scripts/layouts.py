"""Write src/toprope/sim/layouts.py: the structures that the C++ core keeps in shared memory and files, for ctypes.

The headers of csrc/core are the only place where a layout is decided. The script reads the part of C++ that they use
for it: structures of numbers, characters, structures and arrays of them; enumerations; numbers that name a length.
Anything else in a wanted structure must be an error (`UnknownCodeError`), never a guess. ctypes and C++ have to agree
on sizes and padding.

Run by hand after a change of a header; tests/sim/test_layouts.py fails until it was, and compares sizes with the
compiler's. A structure that Python is to read is added to `WANTED`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "toprope" / "sim" / "csrc" / "core"
TARGET = ROOT / "src" / "toprope" / "sim" / "layouts.py"

# header: the structures and enumerations of it that Python reads, each after those that it is made of
WANTED = {
    "counters.h": ("CardCounters", "Kind", "Site", "HostSite", "Assumed", "Lack", "LackRecord", "Counters"),
    "cards.h": ("SharedCard", "ProcessSlot", "Cards"),
    "trace.h": ("Act", "Record", "Trace"),
    "signatures.h": ("Role", "TensorShape", "Signature", "Signatures"),
    "rehearsal.h": (
        "Held", "Step", "BadNumber", "Line", "Sample", "CardMemory", "SiteSteps", "FirstNumber", "Rehearsal",
    ),
}  # fmt: skip

COUNTS = ("kStepKinds", "kBadNumbers")
"""Enumerators that count the others: lengths of arrays, and no values."""

NUMBERS = {
    "Counter": "c_uint64", "uint64_t": "c_uint64", "int64_t": "c_int64", "uint32_t": "c_uint32", "int32_t": "c_int32",
    "uint16_t": "c_uint16", "int16_t": "c_int16", "uint8_t": "c_uint8", "int8_t": "c_int8", "char": "c_char",
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A member of a structure: its name, the name of its type, and the lengths of the arrays that it is made of."""

    name: str
    type: str
    lengths: tuple[str, ...]


class UnknownCodeError(ValueError):
    """A header has what this script does not read."""


def constant(name: str) -> str:
    """Python's name of a C++ constant or enumerator: MAX_CARDS of kMaxCards, TRAINING of kTraining."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removeprefix("k")).upper()


class Header:
    """One header, of which lengths, structures and enumerations can be asked for by name."""

    def __init__(self, text: str) -> None:
        self._text = re.sub(r"//.*", "", text)
        self.lengths = {
            name: int(number, 0)
            for line in re.findall(r"constexpr (?:u?int\d*(?:_t)?) (k[^;]*);", self._text)
            for name, number in re.findall(r"(k\w+) = (\d\w*)(?=,|$)", line)
        }
        self.aliases = {
            name: (type_name, tuple(re.findall(r"\[(\w+)\]", lengths)))
            for name, type_name, lengths in re.findall(r"using (\w+) = (\w+)((?:\[\w+\])+);", self._text)
        }

    def enumeration(self, name: str) -> tuple[str, dict[str, int]] | None:
        """Its underlying type and enumerators; None where there is none of this name."""
        found = re.search(rf"enum (?:class )?{name} : (\w+) {{(.*?)}};", self._text, re.DOTALL)
        if found is None:
            return None
        numbers: dict[str, int] = {}
        for part in filter(None, map(str.strip, found[2].split(","))):
            key, _, number = map(str.strip, part.partition("="))
            numbers[key] = int(number, 0) if number else max(numbers.values(), default=-1) + 1
        return found[1], numbers

    def structure(self, name: str) -> tuple[Field, ...]:
        """Its members, in order."""
        found = re.search(rf"struct {name} {{(.*?)\n}};", self._text, re.DOTALL)
        if found is None:
            raise UnknownCodeError(f"no struct {name}")
        fields: list[Field] = []
        for statement in filter(None, map(str.strip, found[1].split(";"))):
            whole = re.fullmatch(r"(\w+)\s+(.+)", statement, re.DOTALL)
            if whole is None:
                raise UnknownCodeError(f"struct {name}: {statement}")
            type_name, inner = self.aliases.get(whole[1], (whole[1], ()))
            for one in whole[2].split(","):
                member = re.fullmatch(r"(\w+)((?:\[\w+\])*)(?:\s*=\s*\S+)?", one.strip())
                if member is None:
                    raise UnknownCodeError(f"struct {name}: {statement}")
                fields.append(Field(member[1], type_name, (*re.findall(r"\[(\w+)\]", member[2]), *inner)))
        return tuple(fields)


def _field(field: Field, enumerations: dict[str, str], structures: set[str]) -> tuple[str, str]:
    """The annotation of a member, and its type of ctypes."""
    name = enumerations.get(field.type, field.type)
    if name not in NUMBERS and name not in structures:
        raise UnknownCodeError(f"{field.type} {field.name}")
    of_c = f"ctypes.{NUMBERS[name]}" if name in NUMBERS else name
    lengths = [constant(length) if length.startswith("k") else length for length in field.lengths]
    if name == "char" and len(lengths) == 1:
        return "bytes", f"{of_c} * {lengths[0]}"
    annotation = of_c if lengths or name in structures else "int"
    for length in reversed(lengths):
        annotation = f"ctypes.Array[{annotation}]"
        of_c = f"({of_c} * {length})" if length != lengths[0] else f"{of_c} * {length}"
    return annotation, of_c


def written() -> str:
    """The text of the module."""
    constants: dict[str, int] = {}
    enumerations: dict[str, str] = {}
    structures: set[str] = set()
    parts = []
    for file, names in WANTED.items():
        header = Header((CORE / file).read_text(encoding="utf-8"))
        every_length = {**header.lengths}
        for name in names:
            if (found := header.enumeration(name)) is not None:
                enumerations[name] = found[0]
                every_length |= found[1]
                rows = [f"    {constant(key)} = {number}" for key, number in found[1].items() if key not in COUNTS]
                parts.append(f'class {name}(IntEnum):\n    """`enum {name}` of {file}."""\n\n' + "\n".join(rows))
                continue
            members = []
            for field in header.structure(name):
                for length in field.lengths:
                    if length.startswith("k") and length in every_length:
                        constants[constant(length)] = every_length[length]
                members.append((field.name, *_field(field, enumerations, structures)))
            structures.add(name)
            annotations = "\n".join(f"    {key}: {annotation}" for key, annotation, _ in members)
            rows = [f'        ("{key}", {of_c}),' for key, _, of_c in members]
            parts.append(
                f'class {name}(ctypes.LittleEndianStructure):\n    """`struct {name}` of {file}."""\n\n{annotations}\n'
                "    _fields_ = (\n" + "\n".join(rows) + "\n    )"
            )
    exported = [*sorted(constants), *sorted(name for names in WANTED.values() for name in names)]
    head = (
        '"""Layouts of the memory and files that the C++ core keeps: written by scripts/layouts.py from its headers.'
        "\n\nThe readers of traces, counters, cards and rehearsals use it. Change the header in csrc/core, then run "
        'the script;\ntests/sim/test_layouts.py compares.\n"""'
        "\n\nfrom __future__ import annotations\n\nimport ctypes\nfrom enum import IntEnum\n\n__all__ = [\n"
        + "".join(f'    "{name}",\n' for name in exported) + "]\n\n"
        + "".join(f"{name} = {number}\n" for name, number in constants.items())
    )  # fmt: skip
    return head + "\n\n" + "\n\n\n".join(parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(written(), encoding="utf-8")
