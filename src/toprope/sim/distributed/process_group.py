"""The backend `hccl` of a process group, torch_npu's ProcessGroupHCCL: gloo over host views of the card's memory.

torch.distributed makes one for each group (registration.py). Its methods are the functions of collectives.py. Names and
texts are torch_npu's. Tests: tests/sim/test_distributed.py, and tests/sim/simulated/test_hccl_alone.py for what one
process can ask.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroupGloo, Store

from toprope.sim.distributed import collectives, kernels, refusals
from toprope.sim.distributed.flight_recorder import GroupStatus
from toprope.sim.distributed.hccl_streams import HcclStreams
from toprope.sim.distributed.members import Members
from toprope.sim.npu._logs import info
from toprope.sim.npu._state import message

__all__ = ["ProcessGroupHCCL", "group_named", "hccl_of"]

_DEFAULT_TIMEOUT = timedelta(minutes=30)
_NAME_LENGTH = 128
"""Room for the name of a communicator, its end included."""


class ProcessGroupHCCL(ProcessGroupGloo):
    """torch_npu's class of this name: the communication of one group of processes, each with a card.

    Collectives of a group run one after the other in the order they were asked for, as on the stream that HCCL has
    for them; gloo has one thread for each group here.

    Args:
        store: where the processes of the group find each other.
        rank: number of this process in the group.
        size: number of processes in the group.
        timeout: the group's options, or the time that a collective may take.
    """

    class Options:
        """Options of a group: the fields of torch_npu's class of this name. Only the time-out does anything.

        Attributes:
            op_timeout: seconds that HCCL gives a kernel of its own.
            is_high_priority_stream: whether HCCL's stream is one of high priority.
            global_ranks_in_group: the ranks of the group in the default group, empty for that one.
            hccl_config: settings of the communicator, such as {"hccl_buffer_size": 200}. As with torch_npu the
                dictionary is copied when it is set and when it is read.
            group_id: name of the group.
        """

        def __init__(self) -> None:
            self._timeout = _DEFAULT_TIMEOUT
            self.op_timeout = _DEFAULT_TIMEOUT
            self.is_high_priority_stream = False
            self.global_ranks_in_group: list[int] = []
            self._hccl_config: dict[str, int | str] = {}
            self.group_id = ""

        @property
        def hccl_config(self) -> dict[str, int | str]:
            """Settings of the communicator."""
            return dict(self._hccl_config)

        @hccl_config.setter
        def hccl_config(self, value: Mapping[str, int | str]) -> None:
            for name, each in value.items():
                if not isinstance(name, str) or not isinstance(each, int | str):
                    raise TypeError(f"hccl_config takes int and str by name, but {name!r} is {type(each).__name__}")
            self._hccl_config = dict(value)

        def copied(self) -> ProcessGroupHCCL.Options:
            """These options as a group keeps them: what a program sets later changes no group that there is."""
            made = ProcessGroupHCCL.Options()
            vars(made).update(vars(self))
            return made

        @property
        def backend(self) -> str:
            """The backend that these options are for."""
            return "hccl"

    def __init__(
        self, store: Store, rank: int, size: int, timeout: ProcessGroupHCCL.Options | timedelta = _DEFAULT_TIMEOUT
    ) -> None:
        kernels.register(ProcessGroupHCCL)
        if isinstance(timeout, timedelta):
            self._options = self.Options()
            self._options._timeout = timeout
        else:
            self._options = timeout.copied()
        gloo = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        gloo._devices = [ProcessGroupGloo.create_default_device()]
        gloo._timeout = self._options._timeout
        gloo._threads = 1
        super().__init__(store, rank, size, gloo)
        if size > 1:
            _wait_for_members(store, rank, size, self._options._timeout)
        self.under_way: threading.Event | None = None
        """Set when the last collective whose caller waits later has ended."""
        self.members = Members(self._options.group_id, self._options.global_ranks_in_group, rank, size)
        """Counts the group's collectives, for traces."""
        ranks = self._options.global_ranks_in_group or list(range(size))
        self.status = GroupStatus(f"group_name_{self._options.group_id}", ranks)
        """Counts the group's operations, for the flight recorder."""
        self.streams = HcclStreams(self._options.is_high_priority_stream)
        self._name = ""
        self._connected = False
        self._open_groups = 0

    def connect(self) -> None:
        """Make the communicator, as the first collective does. Here it only has its settings checked.

        Raises:
            RuntimeError: torch_npu's, a setting has the wrong type.
        """
        if not self._connected:
            refusals.check_config(self._options.hccl_config)
            self._connected = True
            info("torch.distributed", f"{self._how_connected()} success, group id is {self._options.group_id}")

    def _how_connected(self) -> str:
        """Name in torch_npu's log for how the communicator is made: by itself, or as a part of the whole one."""
        if self._options.global_ranks_in_group and os.environ.get("ROOTINFO_SUBCOMM_ENABLE") == "1":
            whole = hccl_of(torch.distributed.distributed_c10d._get_default_group())
            if whole is not None and whole._connected:
                return "Create sub hccl comm by hcclCreateSubCommConfig"
        return "Create hccl comm by hcclCommInitRootInfoConfig"

    def wait_for_all(self, seconds: float | None = None) -> None:
        """Wait for the collectives under way, whatever becomes of them.

        Args:
            seconds: how long at most; None for as long as they take.
        """
        if self.under_way is not None and self.under_way.wait(seconds):
            self.under_way = None

    @property
    def options(self) -> Options:  # type: ignore[override]
        """The options that the group was made with."""
        return self._options

    supports_splitting = False
    """gloo's way to part a group in two has no place for HCCL's options; torch makes a new group instead."""

    def name(self) -> str:
        """The backend's name."""
        return "hccl"

    def get_hccl_comm_name(self, rankid: int, *args: Any, init_comm: bool = True) -> str:
        """The name of the group's communicator, the same in all its processes."""
        if not self._name:
            self._name = str(self._options.hccl_config.get("hccl_comm_name") or f"toprope_{self._options.group_id}")
        return self._name

    def _set_hccl_comm_name(self, hccl_comm_name: str) -> None:
        """Name the group's communicator, before its name is asked for.

        Raises:
            RuntimeError: torch_npu's, the name has no letter or more than 127, or the communicator has another one.
        """
        wrong = ""
        if not 0 < len(hccl_comm_name.encode()) < _NAME_LENGTH:
            wrong = f"The length of the name must be between 1 and {_NAME_LENGTH - 1}, "
        elif self._name not in ("", hccl_comm_name):
            wrong = "The current ProcessGroup has already set the name and cannot be duplicated, "
        if wrong:
            has = f", current hcclCommName:{self._name}" if self._name else ""
            raise RuntimeError(
                message(f"{wrong}Invalid hcclCommName:{hccl_comm_name}{has}", "ERR02003 DIST invalid value")
            )
        self._name = hccl_comm_name

    def get_coll_stream_id(self, device: torch.device) -> int:
        """Number of the stream for the collectives of a card, which is made if there was none."""
        return self.streams.number(torch.device(device).index, is_used=True)

    def get_p2p_stream_id(self, device: torch.device, peer: int, is_batched: int) -> int:
        """Number of the stream for messages with another process; -1 before the first one.

        Args:
            device: the card.
            peer: rank of the other process.
            is_batched: 1 for messages of `batch_isend_irecv`, which take the stream of the collectives.
        """
        return self.streams.number(torch.device(device).index, None if is_batched == 1 else peer)

    def _get_stream_id(self, p2p: bool = False, peer: int = -1) -> int:
        """Number of a stream of the current card; -1 where nothing has been done on it.

        Raises:
            RuntimeError: torch_npu's, for messages without the rank of the other process.
        """
        if p2p and peer < 0:
            text = f"In p2p scenarios, the passed 'dst rank id' : {peer} is error, expected value >= 0."
            raise RuntimeError(message(text, "ERR02001 DIST invalid parameter"))
        return self.streams.number(torch.npu.current_device(), peer if p2p else None)  # type: ignore[attr-defined]

    def _group_start(self) -> None:
        """Begin a group of operations that HCCL starts together. Here each of them starts at once."""
        self._open_groups += 1

    def _group_end(self) -> None:
        """End the group that `_group_start` began.

        Raises:
            RuntimeError: there is none.
        """
        if not self._open_groups:
            raise RuntimeError(message("hcclGroupEnd without hcclGroupStart", "ERR02200 DIST call hccl api failed"))
        self._open_groups -= 1

    allreduce = collectives.allreduce
    allreduce_coalesced = collectives.allreduce_coalesced
    broadcast = collectives.broadcast
    reduce = collectives.reduce
    allgather = collectives.allgather
    allgather_coalesced = collectives.allgather_coalesced
    _allgather_base = collectives.allgather_base
    allgather_into_tensor_coalesced = collectives.allgather_into_tensor_coalesced
    gather = collectives.gather
    scatter = collectives.scatter
    reduce_scatter = collectives.reduce_scatter
    _reduce_scatter_base = collectives.reduce_scatter_base
    reduce_scatter_tensor_coalesced = collectives.reduce_scatter_tensor_coalesced
    alltoall = collectives.alltoall
    alltoall_base = collectives.alltoall_base
    barrier = collectives.barrier
    send = collectives.send
    recv = collectives.recv
    recv_anysource = collectives.recv_anysource


def _wait_for_members(store: Store, rank: int, size: int, timeout: timedelta) -> None:
    """Wait until every member of a new group has its connections.

    gloo returns as soon as its own are there. A member that then destroyed the group, which needs no wait on a card,
    closed connections that another one still waited for: "Connection closed by peer" there.
    """
    store.set(f"connected/{rank}", "")
    store.wait([f"connected/{other}" for other in range(size) if other != rank], timeout)


def hccl_of(group: Any) -> ProcessGroupHCCL | None:
    """The backend `hccl` of a process group, None where it has another one for the cards, or none."""
    if torch.device("npu") not in group._device_types:
        return None
    backend = collectives.unwrapped(group._get_backend(torch.device("npu")))
    return backend if isinstance(backend, ProcessGroupHCCL) else None


def group_named(name: str) -> torch.distributed.ProcessGroup | None:
    """The process group of this process whose communicator has a name, as `get_hccl_comm_name` gives it; or None."""
    if not torch.distributed.is_initialized():
        return None
    for group in torch.distributed.distributed_c10d._world.pg_map:
        hccl = hccl_of(group)
        if hccl is not None and hccl.get_hccl_comm_name(hccl.rank()) == name:
            return group
    return None
