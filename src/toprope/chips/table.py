"""Tables of the chips in Markdown for docs/chips.md: an overview, and the source of every figure.

Used by `python -m toprope.chips`. Columns and words are free; the two marks are those of the page. Tests:
tests/base/test_chips.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toprope.chips.model import FIGURES, Chip, Figure, Source

__all__ = ["BEGIN", "END", "markdown", "renewed"]

BEGIN = "<!-- begin: written by `python -m toprope.chips docs/chips.md` -->"
END = "<!-- end -->"

_UNKNOWN = "unknown"


def markdown(chips: Sequence[Chip]) -> str:
    """All chips in one table, then each family's figures with their sources, then the sources."""
    parts = ["## The chips", _overview(chips)]
    for family in dict.fromkeys(chip.family for chip in chips):
        parts += [f"### {family}", _figures([chip for chip in chips if chip.family == family])]
    parts += ["## Sources", _sources(chips)]
    return "\n\n".join(parts) + "\n"


def renewed(page: str, chips: Sequence[Chip]) -> str:
    """The page with the part between its two marks written again.

    Raises:
        ValueError: the page has no marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{markdown(chips)}\n{END}{after}"


def _overview(chips: Sequence[Chip]) -> str:
    head = [
        "chip",
        "also",
        "`get_device_name()`",
        "npu-smi",
        "SocVersion",
        "cube / vector cores",
        "memory, MiB",
        "L2, MiB",
    ]
    rows = [
        [
            f"**{chip.name}**",
            ", ".join(chip.aliases),
            _text(chip.soc_name),
            _text(chip.npu_smi_name),
            _text(chip.soc_version),
            f"{_text(chip.cube_cores)} / {_text(chip.vector_cores)}",
            _text(chip.hbm_mib),
            _text(chip.l2_mib),
            _text(chip.memory_gb_per_s),
            _text(chip.peak_tflops.get("float16")),
            "yes" if chip.supports("bfloat16") else "no",
        ]
        for chip in chips
    ]
    return _table([*head, "GB/s", "float16 TFLOPS", "bfloat16"], rows)


def _figures(chips: Sequence[Chip]) -> str:
    """One row for each different figure of a family, with the chips that have it."""
    rows = []
    for name in (*FIGURES, "peak_tflops"):
        same: dict[str, tuple[Figure | None, list[str]]] = {}
        for chip in chips:
            figure = chip.figure(name)
            same.setdefault(repr(figure), (figure, []))[1].append(chip.name)
        for figure, names in same.values():
            who = "all" if len(names) == len(chips) else ", ".join(names)
            if figure is None:
                rows.append([f"`{name}`", who, _UNKNOWN, "", ""])
            else:
                ids = ", ".join(f"[{source.id}](#{source.id})" for source in figure.sources)
                rows.append([f"`{name}`", who, _text(figure.value), ids, figure.note])
    return _table(["figure", "chips", "value", "source", "note"], rows)


def _sources(chips: Iterable[Chip]) -> str:
    used: dict[str, Source] = {}
    for chip in chips:
        for figure in chip.figures.values():
            used |= {source.id: source for source in figure.sources}
    rows = [
        [f'<a id="{source.id}"></a>{source.id}', f"[{source.what}]({source.url})", source.read]
        for source in sorted(used.values(), key=lambda source: source.id)
    ]
    return _table(["id", "what", "read"], rows)


def _text(value: object) -> str:
    if value is None:
        return _UNKNOWN
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
