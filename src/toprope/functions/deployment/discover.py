"""Discovery of the cards of this machine: simulated ones, or those that the vendors' tools and device files report.

Called where a session or `toprope start` begins, by `toprope status` and by the image pipelines. Modes, the device
files that count, and the model "Ascend" and the 1000 MB of a card that is only counted are openYuanrong's; the columns
asked of nvidia-smi are NVIDIA's, and npu-smi's table is read by `device.host.smi`. Cards have the numbers of this
process's own mask, which differs from openYuanrong on purpose. Nothing here may load torch.
tests/functions/test_functions_collect.py has stand-ins of /dev and npu-smi.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from toprope.errors import UsageError
from toprope.functions.scheduling.ledger import Card
from toprope.visible_devices import cuda_map, visible_cards

__all__ = ["MODES", "collect"]

MODES = ("all", "count", "hbm", "sfmd", "topo", "off")
"""How NPUs are found: `count` by their device files alone, `off` not at all, all others by npu-smi. What `sfmd` and
`topo` add, addresses and links of the cards, is not collected."""

_PSEUDO_HBM = 1000
_LIMIT = 10.0

_log = logging.getLogger("toprope")


def collect(mode: str, gpus: bool = True, root: Path = Path("/")) -> tuple[Card, ...]:
    """Return the cards that this process may grant: those of its own mask, by its numbers.

    Args:
        mode: of `MODES`.
        gpus: whether NVIDIA's cards are looked for too.
        root: where /dev is; another folder in tests.

    Raises:
        UsageError: no such mode.
    """
    if mode not in MODES:
        raise UsageError(f"npu_collection_mode only support {', '.join(MODES)}", looked_at=f"it is {mode!r}")
    npus = () if mode == "off" else _visible(_npus(mode, root))
    return npus + (_gpus() if gpus else ())


def _npus(mode: str, root: Path) -> Sequence[Card]:
    simulated = os.environ.get("TOPROPE_SIM", "")
    if simulated:
        return _simulated(simulated, mode)
    if os.environ.get("TOPROPE_DEVICE", "").partition(":")[0] in ("cpu", "cuda"):
        return ()  # this run was given no NPU
    found = _device_files(root) if mode == "count" else ()
    return found or _by_smi(mode, root)


def _simulated(text: str, mode: str) -> Sequence[Card]:
    from toprope import chips
    from toprope.sim.metrics import cards
    from toprope.sim.spec import SimSpec

    spec = SimSpec.parse(text)
    chip = chips.get(spec.chip)
    hbm = (spec.hbm or chip.hbm_bytes or 0) // 2**20
    folder = os.environ.get("TOPROPE_RUN_DIR", "")
    states = cards.read(Path(folder), spec.count) if folder else ()
    health = {state.physical: not state.unhealthy for state in states}
    model = "Ascend" if mode == "count" else str(chip.npu_smi_name or chip.name)
    memory = _PSEUDO_HBM if mode == "count" else hbm
    return [Card(number, "NPU", model, memory, health.get(number, True)) for number in range(spec.count)]


def _device_files(root: Path) -> Sequence[Card]:
    names = (re.fullmatch(r"davinci(\d+)", path.name) for path in (root / "dev").glob("davinci*"))
    numbers = sorted(int(name[1]) for name in names if name)
    return [Card(number, "NPU", "Ascend", _PSEUDO_HBM) for number in range(len(numbers))]


def _by_smi(mode: str, root: Path) -> Sequence[Card]:
    from toprope.device.host.smi import parse

    text = _run("npu-smi", "info")
    if text is None:
        if any((root / "dev").glob("davinci[0-9]*")):
            _log.warning("npu-smi is missing or fails: no NPU is offered; npu_collection_mode=count needs no npu-smi")
        return ()
    found = parse(text)
    model = "Ascend" if mode == "count" else ""
    return [
        Card(number, "NPU", model or card.name, card.total_mb or 0, card.health.upper() == "OK")
        for number, card in enumerate(found)
    ]


def _visible(cards: Sequence[Card]) -> tuple[Card, ...]:
    seen = visible_cards(os.environ.get("ASCEND_RT_VISIBLE_DEVICES"), len(cards))
    if seen.problem:
        _log.warning("ASCEND_RT_VISIBLE_DEVICES=%s: %s", os.environ["ASCEND_RT_VISIBLE_DEVICES"], seen.problem)
    return tuple(card for card in cards if card.id in seen.cards)


def _gpus() -> tuple[Card, ...]:
    if os.environ.get("TOPROPE_DEVICE", "").partition(":")[0] in ("cpu", "npu") or shutil.which("nvidia-smi") is None:
        return ()
    text = _run("nvidia-smi", "--query-gpu=index,name,memory.total,uuid", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines() if line.count(",") >= 3]
    uuids = [row[3] for row in rows]
    seen = cuda_map(os.environ.get("CUDA_VISIBLE_DEVICES"), len(rows), uuids)
    return tuple(
        Card(number, "GPU", rows[number][1], int(rows[number][2]) if rows[number][2].isdigit() else 0)
        for number in seen.physical
    )


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
