"""Facade module `apt_model.optimization.vgpu_stack`: tensors on levels of memory, over `toprope.tiers`.

Programs that were written for apt_model call it, and `vb_global` reports from it. Keys and arguments that end in `_mb`
are MiB (2**20 bytes), as in the original; speeds are GB/s (10**9 bytes a second). A level "ssd" is a folder ("path");
its file exists from the first tensor until the stack is closed or collected. tests/compat/test_apt_vgpu_stack.py holds
names and results.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from toprope.device import Device
from toprope.errors import TierCapacityError, UsageError
from toprope.tiers import LevelStats, Tier, TierLinear, TierStack, free_memory
from toprope.tiers.store.disk_file import free_on_disk, is_memory

from .._choice import best

if TYPE_CHECKING:
    import torch

__all__ = ["VGPULevel", "VGPUStack", "VGPUStackLinear", "create_vgpu_stack"]

_MIB = 2**20
_GB = 10**9
_LEVELS = Path(__file__).with_name("vgpu_levels.toml")
_ROW = {"capacity_mb", "device", "speed_gbps", "path"}
_SOURCES = {"measured": "实测", "configured": "配置值", "unknown": ""}


class VGPULevel:
    """One level of memory. Alone it is a stack of one level; the levels of a `VGPUStack` are its `levels`.

    Args:
        level: its number.
        capacity_mb: MiB that tensors may take.
        device: "npu:0", "cuda", "cpu", "ssd", ...
        transfer_speed_gbps: GB/s to it, of an SSD from it, as configured; None where they are not.
        path: of an SSD, the folder for its file; None for one in toprope's cache directory.

    Raises:
        UsageError: the folder cannot be used.
        TierCapacityError: less memory, or room on the disk, than that is free.
        TopropeError: as for `toprope.device.get`.
    """

    def __init__(
        self,
        level: int,
        capacity_mb: float,
        device: str | torch.device,
        transfer_speed_gbps: float | None,
        path: str | Path | None = None,
    ) -> None:
        self._take(level, TierStack([_tier(device, capacity_mb, transfer_speed_gbps, path)]), 0)

    def _take(self, level: int, tiers: TierStack, place: int) -> None:
        tier = tiers.tiers[place]
        self.level = level
        self.device = tier.name
        self.capacity_bytes = tier.capacity
        self._tiers, self._place = tiers, place

    @classmethod
    def _of(cls, tiers: TierStack, place: int) -> VGPULevel:
        made = cls.__new__(cls)
        made._take(place, tiers, place)
        return made

    @property
    def current_bytes(self) -> int:
        """Bytes in use."""
        return self._stats().used

    @property
    def transfer_speed(self) -> float | None:
        """Bytes a second to this level, of an SSD from it: measured once enough was copied, before as configured.

        None if neither.
        """
        return self._stats().speed

    @property
    def transfer_speed_source(self) -> str:
        """Source of `transfer_speed`: "measured", "configured" or "unknown"."""
        return self._stats().speed_source

    def put(self, key: str, tensor: torch.Tensor, priority: int = 5) -> bool:
        """Keep a tensor on this level. False where it has no room, which changes nothing: no other one is dropped."""
        try:
            self._tiers.put(key, tensor, priority=priority, level=self._place)
        except TierCapacityError:
            return False
        return True

    def get(self, key: str) -> torch.Tensor | None:
        """A tensor that lies on this level, from an SSD as a copy in the host's memory; None where it does not."""
        return self._tiers.access_at(key, self._place)

    def remove(self, key: str) -> torch.Tensor | None:
        """Give a tensor back and forget it; None where it does not lie on this level."""
        return self._tiers.remove(key) if self._tiers.level_of(key) == self._place else None

    def get_stats(self) -> dict[str, Any]:
        """level, device, capacity_mb, used_mb, usage and hit_rate (0 to 1), hits, misses, evictions, cached_tensors."""
        return _figures(self.level, self._stats())

    def _stats(self) -> LevelStats:
        return self._tiers.stats().levels[self._place]


class VGPUStack:
    """Levels of memory, the fastest first; a tensor without room on one is moved down to the next, never dropped.

    A tensor that is on its level's device already is kept by reference; one that is not, or that is a view of a
    larger storage, is copied. Safe to use from several threads. The call in which an error of a disk (TierError)
    happens raises it, or the next one after a prefetch; no tensor is lost by it.

    Args:
        config: {"levels": [{"capacity_mb": 2000, "device": "npu:0", "speed_gbps": 600}, ...]}, the speed may be left
            out. A level with the device "ssd" has a "path", the folder of its file; left out, it is in toprope's cache
            directory. None: the guide's levels for the device that `apt_model.core.system.get_device()` gives, with
            no more than nine tenths of what is free.
        verbose: whether to print the levels, as the original does.

    Raises:
        UsageError: the configuration cannot be read, or a folder cannot be used.
        TierCapacityError: a configured level is larger than the free memory of its device, or the room on its disk.
        TopropeError: as for `toprope.device.get`.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, *, verbose: bool = True) -> None:
        self.tiers = TierStack(_default_tiers(best()) if config is None else _configured_tiers(config))
        """The stack of `toprope.tiers` below."""
        self.levels = [VGPULevel._of(self.tiers, place) for place in range(len(self.tiers.tiers))]
        if verbose:
            self.print_levels()

    def print_levels(self) -> None:
        """Print the levels, as the original does when it makes them."""
        print("\n".join(self._made()))  # noqa: T201

    def _made(self) -> Iterator[str]:
        yield f"[VGPU Stack] 初始化完成，{len(self.levels)}层堆叠"
        for level, stats in enumerate(self.tiers.stats().levels):
            speed = f" @ {_speed(stats)}" if stats.speed else ""
            capacity = f"{stats.capacity / _MIB:.2f}".rstrip("0").rstrip(".")
            yield f"  Level {level}: {stats.device} - {capacity}MB{speed}"

    def close(self) -> None:
        """Forget all tensors and delete the SSD's file. It also happens when the stack is gone or the program ends."""
        self.tiers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __deepcopy__(self, memo: object) -> VGPUStack:
        """The same stack: it stands for memory, of which a copied model has no more than the first."""
        return self

    def __repr__(self) -> str:
        levels = (
            f"{stats.device} {stats.used / _MIB:.1f}/{stats.capacity / _MIB:.0f} MiB"
            for stats in self.tiers.stats().levels
        )
        return f"VGPUStack({', '.join(levels)})"

    def register(self, key: str, tensor: torch.Tensor, priority: int = 5) -> None:
        """Keep a tensor on the first level that can make room, in place of what had this key before.

        Args:
            key: its name.
            tensor: a dense tensor without gradients.
            priority: tensors of a lower one are moved down first; among equals the least recently used.

        Raises:
            TierCapacityError: no level has room without dropping another tensor, or the disk is full; nothing changed.
            TierError: a disk cannot be read or written; nothing changed.
            UsageError: no tensor that can be kept.
        """
        self.tiers.put(key, tensor, priority=priority)

    def put(self, key: str, tensor: torch.Tensor, priority: int = 5) -> bool:
        """`register`, and True."""
        self.register(key, tensor, priority)
        return True

    def access(self, key: str) -> torch.Tensor | None:
        """A tensor, brought to level 0; None where the key is unknown.

        What is larger than level 0 is given from the level it lies on, from an SSD as a copy in the host's memory.
        """
        return self.tiers.access(key)

    def get(self, key: str) -> torch.Tensor | None:
        """The same as `access`."""
        return self.access(key)

    def prefetch(self, keys: Iterable[str]) -> None:
        """Bring tensors to level 0, as many as fit, from an SSD in the background. Unknown keys are passed over."""
        self.tiers.prefetch(keys)

    def remove(self, key: str) -> torch.Tensor | None:
        """Give a tensor back, from the level it lies on, and forget it; None where the key is unknown."""
        return self.tiers.remove(key)

    def clear(self) -> None:
        """Forget all tensors. The weights of `VGPUStackLinear` are their layers' own and stay."""
        self.tiers.clear()

    def get_stats(self) -> dict[str, Any]:
        """levels (see `get_all_stats`), total_requests, l0_hit_rate (0 to 1), promotions, demotions, total_tensors.

        Weights of `VGPUStackLinear` count among the tensors, and each forward pass as a request.
        """
        stats = self.tiers.stats()
        return {
            "levels": [_figures(level, each) for level, each in enumerate(stats.levels)],
            "total_requests": stats.requests,
            "l0_hit_rate": stats.levels[0].hits / stats.requests if stats.requests else 0.0,
            "promotions": stats.promotions,
            "demotions": stats.demotions,
            "total_tensors": sum(each.entries for each in stats.levels),
        }

    def get_all_stats(self) -> list[dict[str, Any]]:
        """The figures of each level, as `VGPULevel.get_stats` gives them."""
        return [_figures(level, each) for level, each in enumerate(self.tiers.stats().levels)]

    def print_stats(self) -> None:
        """Print the figures, with where each speed comes from."""
        print("\n".join(_report(self.get_stats(), self.tiers.stats().levels)))  # noqa: T201 - what the call is for


class VGPUStackLinear(TierLinear):
    """torch's Linear, whose weights live on the level of a stack that has room for them, and train there.

    See `toprope.tiers.TierLinear`: real parameters `weight` and `bias`; each forward pass brings copies to the
    input's device, differentiably.

    Args:
        in_features, out_features, bias: as for torch.nn.Linear.
        vgpu_stack: where the weights live.

    Raises:
        TierCapacityError: no level has room for the weights.
    """

    def __init__(self, in_features: int, out_features: int, vgpu_stack: VGPUStack, bias: bool = True) -> None:
        super().__init__(in_features, out_features, vgpu_stack.tiers, bias)
        self.vgpu_stack = vgpu_stack


def create_vgpu_stack(config: Mapping[str, Any] | None = None) -> VGPUStack:
    """A stack. Argument and errors as for `VGPUStack`."""
    return VGPUStack(config)


def _tier(device: Any, capacity_mb: float, speed_gbps: float | None, path: str | Path | None = None) -> Tier:
    return Tier.named(device, int(capacity_mb * _MIB), None if speed_gbps is None else speed_gbps * _GB, path)


def _configured_tiers(config: Mapping[str, Any]) -> list[Tier]:
    """The levels of a configuration, all or none of them."""
    form = 'write {"levels": [{"capacity_mb": 2000, "device": "npu:0", "speed_gbps": 600}, ...]}'
    rows = config.get("levels") if isinstance(config, Mapping) else None
    if not isinstance(rows, list | tuple) or not rows or set(config) != {"levels"}:
        raise UsageError("the configuration of the stack cannot be read.", looked_at=repr(config), do=form)
    tiers = []
    for number, row in enumerate(rows):
        known = isinstance(row, Mapping) and {"capacity_mb", "device"} <= set(row) and not set(row) - _ROW
        numbers = [row["capacity_mb"], row.get("speed_gbps") or 0] if known else [None]
        named = known and isinstance(row.get("path"), str | Path | None)
        if not named or not all(isinstance(each, int | float) and each >= 0 for each in numbers):
            raise UsageError(f"level {number} of the stack cannot be read.", looked_at=repr(row), do=form)
        tiers.append(_tier(row["device"], row["capacity_mb"], row.get("speed_gbps"), row.get("path")))
    return tiers


def _default_tiers(device: Device) -> list[Tier]:
    """The guide's levels for a device; a tenth of what is free is left to the program itself."""
    table = tomllib.loads(_LEVELS.read_text(encoding="utf-8"))["level"]
    machine = device.kind if any(row["machine"] == device.kind for row in table) else "*"
    tiers = []
    for row in (row for row in table if row["machine"] == machine):
        on_card = row["device"] == machine
        tier = _tier(device if on_card else row["device"], row["capacity_mb"], row.get("speed_gbps"))
        if tier.device is not None:
            free = free_memory(tier.device)
        else:
            folder = tier.folder or Path()
            if is_memory(folder):
                continue  # a file there would lie in the host's memory
            free = free_on_disk(folder)
        capacity = tier.capacity if free is None else min(tier.capacity, free * 9 // 10)
        tiers.append(replace(tier, capacity=capacity))
    return tiers


def _figures(level: int, stats: LevelStats) -> dict[str, Any]:
    asked = stats.hits + stats.misses
    return {
        "level": level,
        "device": stats.device,
        "capacity_mb": stats.capacity / _MIB,
        "used_mb": stats.used / _MIB,
        "usage": stats.used / stats.capacity if stats.capacity else 0.0,
        "hit_rate": stats.hits / asked if asked else 0.0,
        "hits": stats.hits,
        "misses": stats.misses,
        "evictions": stats.evictions,
        "cached_tensors": stats.entries,
    }


def _speed(stats: LevelStats) -> str:
    return f"{(stats.speed or 0) / _GB:.1f}GB/s（{_SOURCES[stats.speed_source]}）"


def _report(stats: Mapping[str, Any], levels: Iterable[LevelStats]) -> Iterator[str]:
    line = "=" * 70
    yield from ("", line, "虚拟Blackwell堆叠统计", line, "", "全局:")
    yield f"  总请求: {stats['total_requests']}"
    yield f"  Level 0命中率: {stats['l0_hit_rate']:.1%}"
    yield f"  提升次数: {stats['promotions']}"
    yield f"  降级次数: {stats['demotions']}"
    yield f"  管理tensor数: {stats['total_tensors']}"
    yield from ("", "各层级:")
    for level, each in zip(stats["levels"], levels, strict=True):
        yield f"\n  Level {level['level']} ({level['device']}):"
        yield f"    容量: {level['used_mb']:.1f}/{level['capacity_mb']:.1f} MB ({level['usage']:.1%})"
        yield f"    命中率: {level['hit_rate']:.1%} ({level['hits']}命中/{level['hits'] + level['misses']}请求)"
        yield f"    缓存tensor: {level['cached_tensors']}"
        yield f"    淘汰次数: {level['evictions']}"
        yield f"    传输速度: {_speed(each) if each.speed else '未知'}"
        if each.write_speed:
            yield f"    写入速度: {each.write_speed / _GB:.1f}GB/s（{_SOURCES['measured']}）"
    yield line + "\n"
