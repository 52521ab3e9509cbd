"""Facade module `torch_npu._C._distributed_c10d`: ProcessGroupHCCL with its options, and dumps of the flight recorder.

The classes are those of toprope.sim.distributed; names, and the pickled and JSON form of a dump, are torch_npu's.
Tests: tests/sim/test_distributed.py, with the cases of tests/helpers/distributed_cases.py.
"""

import json
import pickle
from typing import Any

from toprope.compat.missing import missing_from

__all__: list[str] = []

_missing = missing_from(__name__)


def _dump_hccl_trace(
    includeCollectives: bool = True,  # noqa: N803
    includeStackTraces: bool = True,  # noqa: N803
    onlyActive: bool = False,  # noqa: N803
) -> bytes:
    """The last operations of this process's groups, pickled; TORCH_HCCL_TRACE_BUFFER_SIZE says how many are kept."""
    from toprope.sim.distributed.flight_recorder import dump

    return pickle.dumps(dump(entries=includeCollectives, frames=includeStackTraces, only_active=onlyActive))


def _dump_hccl_trace_json(includeCollectives: bool = True, onlyActive: bool = False) -> bytes:  # noqa: N803
    """`_dump_hccl_trace` in JSON, without the code that asked."""
    from toprope.sim.distributed.flight_recorder import dump

    found = dump(entries=includeCollectives, frames=False, only_active=onlyActive)
    for status in found["pg_status"].values():
        status.update({name: str(value) for name, value in status.items()})
    return json.dumps(found).encode()


def __getattr__(name: str) -> Any:
    if name == "ProcessGroupHCCL":
        from toprope.sim import installed

        if installed() is None:
            raise AttributeError("torch_npu's ProcessGroupHCCL needs a card, and there is none", name=name)
        from toprope.sim.distributed.process_group import ProcessGroupHCCL

        return ProcessGroupHCCL
    return _missing(name)
