"""Time that a chip takes for the work of an operator, as a range; pure, from rates.toml and the chip's own figures.

Used by every estimate. The formulas are free; their figures in rates.toml were fitted to public measurements, so a
change of either changes the errors in docs/estimate_errors.md (`python benchmarks/estimates.py`). A user's own
measured rates (stored.py) replace figures by their names in rates.toml. Tests: tests/estimate/test_rates.py,
tests/estimate/test_ranking.py.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import ceil
from typing import Any

from toprope.chips import Chip
from toprope.estimate.cost.costs import Cost, Kind
from toprope.estimate.cost.span import NOTHING, Span
from toprope.estimate.cost.stored import StoredRates, stored_for
from toprope.estimate.record.calls import item_bits

__all__ = ["OWN_LAUNCH", "Rates", "UnknownRateError", "rates_of", "shipped_rates"]

_MICRO = 1e-6
_MEANING = {
    "memory_gb_per_s": "the bandwidth of the memory (memory_gb_per_s)",
    "cube_cores": "the number of cube cores",
    "cube_mhz": "the clock",
}
OWN_LAUNCH = ("matmul", "softmax", "normalisation", "attention")
"""Kinds of operators whose launch takes longer than others."""


class UnknownRateError(ValueError):
    """No source gives a figure that a time rests on."""


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(resources.files("toprope.estimate.cost").joinpath("rates.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Rates:
    """Rates of one chip.

    Attributes:
        chip: the chip.
        table: what is attained of the chip's figures, as rates.toml has it.
        stored: figures of the user's own card that are in the table; None where there are none.
        not_used: why stored figures are not in the table; "" where they are, or where there are none.
    """

    chip: Chip
    table: dict[str, Any]
    stored: StoredRates | None = None
    not_used: str = ""

    def seconds(self, cost: Cost) -> Span:
        """Return the time of an operator on the card, from the first core that begins to the last that ends."""
        if cost.rows:
            return Span.of(self._product(cost), self.table["products"]["width"])
        moved = self._moved(cost)
        computed = cost.elements / self._elements_per_second(cost)
        if cost.rearranged:
            computed += cost.rearranged / self._rearranged_per_second(cost.row_bytes)
        if cost.kind == "attention" and cost.operations:
            read = cost.bytes / self._memory_rate()  # a cache of keys and values is in memory
            return Span.of(max(self._attention(cost), read), self.table["attention"]["width"])
        if cost.operations:
            attained = self.table["convolution"]["attained"]
            computed = max(computed, cost.operations / (self._peak(cost.dtype) * attained))
        width = self.table["memory"]["other_width" if cost.kind == "other" else "width"]
        return Span.of(max(moved, computed) + self._start(cost), width)

    def _start(self, cost: Cost) -> float:
        figures = self.table["start"]
        small = cost.elements <= figures["small_elements"]
        return float(figures.get(cost.kind, figures["small" if small else "kernel"])) * _MICRO

    def _product(self, cost: Cost) -> float:
        """A product of matrices with the tiles that suit it best."""
        figures = self.table["products"]
        attained = figures["attained_float32" if cost.dtype == "float32" else "attained"]
        if self.chip.core_structure == "unified":
            attained *= figures["unified"]
        cores = self._known("cube_cores")
        core_rate = self._peak(cost.dtype) * attained / cores
        cache_rate = figures["l2_bytes"] * cores * self._known("cube_mhz") * 1e6
        item = item_bits(cost.dtype) / 8
        from_memory = cost.bytes / self._memory_rate()  # weights seldom are in the cache yet
        best = float("inf")
        for rows, columns in figures["tiles"]:
            down, across = ceil(cost.rows / rows), ceil(cost.columns / columns)
            read = cost.products * cost.depth * item * (cost.rows * across + cost.columns * down)
            for split in figures["splits"]:
                waves = ceil(down * across * cost.products * split / cores)
                computed = waves * (2.0 * rows * columns * cost.depth / split / core_rate + figures["wave"] * _MICRO)
                taken = max(computed, read / cache_rate, from_memory)
                if split > 1:
                    added = 8.0 * cost.rows * cost.columns * cost.products * split / cache_rate
                    taken += added + figures["split"] * _MICRO
                best = min(best, taken)
        return float(best + figures["start_float32" if cost.dtype == "float32" else "start"] * _MICRO)

    def _attention(self, cost: Cost) -> float:
        """Fused attention: cores take blocks of rows, and share blocks where there are few."""
        figures = self.table["attention"]
        cores = self._known("cube_cores")
        blocks = ceil(cost.rows_of_queries / figures["rows"])
        filled = figures["few"] if blocks < cores else blocks / (ceil(blocks / cores) * cores)
        weights = cost.operations / (4.0 * max(cost.head, 1))  # of the softmax, on the vector cores
        softmax = weights / (figures["softmax"] * self._vector_cores * self._known("cube_mhz") * 1e6)
        products = cost.operations / (self._peak(cost.dtype) * figures["attained"])
        return float(max(products, softmax) / filled + figures["start"] * _MICRO)

    @property
    def _vector_cores(self) -> float:
        return self.chip.vector_cores or self._known("cube_cores")

    def _known(self, name: str) -> float:
        value = getattr(self.chip, name)
        if value is None:
            raise UnknownRateError(
                f"no public source gives {_MEANING[name]} of the {self.chip.name}, which times rest on"
            )
        return float(value)

    def _peak(self, dtype: str) -> float:
        """Operations a second of the cube cores."""
        peaks = self.chip.peak_tflops
        bits = item_bits(dtype)
        found = peaks.get(dtype)
        if found is None and bits <= 8:
            found = peaks.get("int8")
        if found is None and bits == 16:
            found = peaks.get("float16")
        if found is None and peaks.get("float16"):
            found = peaks["float16"] * self.table["products"]["float32"] * (32 / bits if bits > 32 else 1)
        if found is None:
            raise UnknownRateError(f"no source gives the peak of the {self.chip.name} in {dtype}")
        return found * 1e12

    def _memory_rate(self) -> float:
        return float(self._known("memory_gb_per_s") * 1e9 * self.table["memory"]["attained"])

    def _moved(self, cost: Cost) -> float:
        """Time of bytes at the rate of the level-2 cache where it holds them, else at the memory's."""
        figures = self.table["memory"]
        memory = self._memory_rate()
        if self.chip.l2_mib is None or self.chip.cube_mhz is None:
            return cost.bytes / memory
        cache = max(figures["l2_bytes"] * self._known("cube_cores") * self.chip.cube_mhz * 1e6, memory)
        filled = cost.bytes / (self.chip.l2_mib * 2**20)
        share = float((filled - figures["l2_full"]) / (figures["l2_none"] - figures["l2_full"]))
        share = min(max(share, 0.0), 1.0)
        warm = cost.bytes - cost.cold
        return float(cost.cold / memory + warm * (share / memory + (1 - share) / cache))

    def _elements_per_second(self, cost: Cost) -> float:
        figures = self.table["vector"]
        rate = figures.get(cost.operator, figures.get(cost.kind))
        cores = self.chip.vector_cores or self.chip.cube_cores
        if rate is None or not cores or self.chip.cube_mhz is None:
            return float("inf")
        return float(rate * cores * self.chip.cube_mhz * 1e6)

    def _rearranged_per_second(self, row_bytes: int) -> float:
        figures = self.table["vector"]
        rate = figures["rearranged_rows" if row_bytes % 32 == 0 and row_bytes else "rearranged"]
        return float(rate * self._vector_cores * self._known("cube_mhz") * 1e6)

    def launch(self, kind: str = "", *, queue: int = 1, graph: bool = False) -> Span:
        """Return the time that the host is busy with one operator.

        Args:
            kind: its kind.
            queue: TASK_QUEUE_ENABLE of torch_npu.
            graph: whether a graph replays it.
        """
        figures = self.table["launch"]
        name = "host_graph" if graph else kind if kind in OWN_LAUNCH else "host"
        factor = 1.0 if graph else figures["queue"][queue]
        return Span.of(figures[name] * factor * _MICRO, figures["width"])

    def synchronise(self) -> Span:
        """Return the time until the host goes on after the card has ended."""
        return Span.of(self.table["launch"]["synchronise"] * _MICRO, self.table["launch"]["width"])

    def copy(self, size: int, *, pinned: bool = False) -> Span:
        """Return the time of a copy of `size` bytes between host and card."""
        link = self.table["host_link"]
        rate = link["pinned" if pinned else "pageable"] * 1e9
        start = Span.of(self.table["launch"]["copy"] * _MICRO, self.table["launch"]["width"])
        return start.plus(Span.of(size / rate, link["width"]))

    def collective(self, name: str, size: int, ranks: int) -> Span:
        """A collective of cards of one node.

        Args:
            name: "allreduce", "allgather", "reducescatter", "alltoall", "broadcast" and what contains one of them.
            size: bytes of the larger side of one card.
            ranks: cards that take part.
        """
        figures = self.table["collectives"]
        if ranks < 2:
            return NOTHING
        passes = 2.0 if "allreduce" in name.lower().replace("_", "") else 1.0
        if "910C" in self.chip.family:
            rate = figures["switch"] * 1e9
        else:
            rate = figures["link"] * 1e9 * min(ranks - 1, 7)
        moved = passes * size * (ranks - 1) / ranks
        start = Span.of(figures["start"] * _MICRO, figures["width"])
        return start.plus(Span.of(moved / rate, figures["width"]))

    def basis(self, kind: Kind) -> str:
        """Return the basis of the times of a kind of operator, in a few words."""
        if self.stored is not None and any(self._bears(kind, name) for name in self.stored.figures):
            return self.stored.basis
        return "a guess" if kind in ("other", "sorting") else "the chip's figures, fitted to public measurements"

    def _bears(self, kind: Kind, figure: str) -> bool:
        """Return whether times of a kind of operator rest on a figure above all."""
        section, _, name = figure.partition(".")
        if kind in _SECTIONS:
            return section == _SECTIONS[kind]
        if kind == "sorting":
            return figure == "vector.sorting"
        return kind != "other" and (section == "memory" or (section == "vector" and name == kind))


_SECTIONS = {"matmul": "products", "convolution": "convolution", "attention": "attention"}


def rates_of(chip: Chip) -> Rates:
    """The rates of a chip: those of the user's own card where some are stored (`toprope calibrate`)."""
    stored, not_used = stored_for(chip.name, _table())
    return Rates(chip, _table() if stored is None else stored.into(_table()), stored, not_used)


def shipped_rates(chip: Chip) -> Rates:
    """The rates of a chip without those of a user's own card."""
    return Rates(chip, _table())
