"""Search for a real card that works: the examination of `toprope doctor`, in short.

Called by `cli.run` through `select_target.choose`, which gets it as a function. It turns what the child processes of
`device.doctor.torch_probe` found into a `Probe`, so that run and doctor agree. Free is the time limit; torch_npu must
never be imported in this process. Tests: tests/cli/test_probe.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from toprope.cli.launch.child_process import without_run
from toprope.cli.launch.select_target import Probe
from toprope.device.doctor.torch_probe import examine
from toprope.device.host.libraries import reason
from toprope.device.host.machine import Examination
from toprope.device.host.software import installed_version

__all__ = ["probe"]

TIME_LIMIT = 120.0
"""Seconds a child has: loading torch, torch_npu and CANN takes 5 to 20; a driver that hangs takes forever."""


def probe(environment: Mapping[str, str] | None = None, time_limit: float = TIME_LIMIT) -> Probe:
    """Look for a real card; no process is started where no torch_npu is installed.

    Args:
        environment: the variables of the child, this process's own when left out. What an outer `toprope run` set
            is left out, so that no facade answers.
        time_limit: seconds after which torch_npu counts as one that cannot be loaded.
    """
    version = installed_version()
    if version is None:
        return Probe("not installed")
    found = examine(without_run(os.environ if environment is None else environment), wait=time_limit, only_npu=True)
    why = _broken(found)
    if why:
        return Probe("broken", version, reason=reason(why), loads=bool(found.torch_npu))
    cards = found.of("npu")
    return Probe("works", version, len(cards), cards[0].title) if cards else Probe("no card", version)


def _broken(found: Examination) -> str:
    """Return the reason why torch_npu cannot be used, "" if it can."""
    if found.ended:
        ended = found.ended.removeprefix("it failed: ")
        return f"{ended}, while it was to {found.doing}" if found.torch_npu else ended
    if "npu" in found.broken:
        return found.absent["npu"]
    if not (found.torch_npu_file or found.torch_error):
        return "there is no module of this name"
    return found.torch_error or found.torch_npu_error or next((card.error for card in found.of("npu")), "")
