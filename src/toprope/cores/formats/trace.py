"""Reads what the simulator recorded: traces of processes, or the Chrome trace of a run; pure.

A part of `cores.record`; `toprope run` checks its program by it. The records are those of `toprope.sim.tracing`
(its keys in a Chrome trace, and the tracks' names "npu:0 stream 1"): a new kind of record there has to be read, or left
out, here. Events order the streams as the program ordered them, and so does a host that waited for a stream. Times are
not read: those of a trace are the host's, not the card's. Tests: tests/cores/test_cores_record_trace.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toprope.cores.formats.queues import Queue, streams_of
from toprope.cores.formats.schedule_json import card_of_chip
from toprope.cores.model import Collective, Communicator, Cores, Op, Program
from toprope.errors import ScheduleError

__all__ = ["TraceLike", "from_chrome", "from_traces"]

_TRACK = re.compile(r"npu:(?P<device>-?\d+) stream (?P<stream>\d+)")


class TraceLike(Protocol):
    """The part of a `toprope.sim.tracing.records.Trace` that is read."""

    @property
    def pid(self) -> int:
        """The process."""

    @property
    def records(self) -> Sequence[Any]:
        """Its acts, `toprope.sim.tracing.records.Record`."""

    @property
    def lost(self) -> int:
        """Acts that it no longer holds."""


@dataclass(frozen=True)
class _Act:
    """An act of a process on a card, from either kind of record."""

    act: str
    name: str
    pid: int
    device: int
    stream: int
    thread: int
    source: str
    begin: float
    event: str = ""
    cores: Cores = (0, 0)
    kind: str = ""
    sync_all: bool = False
    assumed: bool = False
    limit: Cores | None = None
    communicator: str = ""
    sequence: int = -1
    engine: str = ""
    ranks: int = 0

    @property
    def card(self) -> tuple[int, int]:
        return self.pid, self.device

    @property
    def is_of_group(self) -> bool:
        """True for a collective of a group, but not for a message between two ranks."""
        return bool(self.communicator) and self.sequence >= 0 and ">" not in self.communicator

    @property
    def member(self) -> str:
        return f"{self.communicator}#{self.sequence}"


def from_traces(traces: Iterable[TraceLike], chip: str, communicator: str = "", source: str = "trace") -> Program:
    """The program of processes that `toprope.sim.trace` or a traced run recorded, each a rank.

    Args:
        traces: one a process.
        chip: the chip of the cards.
        communicator: name of the one communicator, of all cards, that collectives belong to whose record does not
            name theirs.
        source: how errors and `Op.source` call the record.

    Raises:
        ScheduleError: a trace has lost its oldest acts, there is no such chip, or a collective's communicator is not
            known.
    """
    acts: list[_Act] = []
    for trace in sorted(traces, key=lambda each: each.pid):
        where = f"{source}: process {trace.pid}"
        if trace.lost:
            raise ScheduleError(
                f"the trace of process {trace.pid} is cut short: it lost its {trace.lost} oldest acts.",
                looked_at=where,
                do="trace a shorter piece, such as one step: with toprope.sim.trace() as recorded",
            )
        acts += (_of_record(record, trace.pid, f"{where}, record {at}") for at, record in enumerate(trace.records))
    return _program(acts, chip, communicator, source)


def from_chrome(data: object, chip: str, communicator: str = "", source: str = "trace.json") -> Program:
    """The program in a Chrome trace that `toprope run --trace` or `Recording.save` wrote.

    Args:
        data: the JSON, as `json` reads it.
        chip: the chip of the cards.
        communicator: as in `from_traces`.
        source: how errors and `Op.source` call the file.

    Raises:
        ScheduleError: as in `from_traces`, or it is no trace of the simulator.
    """
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list) or not all(isinstance(each, dict) for each in events):
        raise ScheduleError(
            f"{source} is no Chrome trace.",
            looked_at=f"{source}: traceEvents",
            do="give what toprope run --trace wrote",
        )
    return _program(list(_of_events(events, source)), chip, communicator, source)


def _of_record(record: Any, pid: int, where: str) -> _Act:
    # Fields that not every version records are read where they are.
    return _Act(
        act=record.act,
        name=record.name,
        pid=pid,
        device=record.device,
        stream=record.stream,
        thread=record.thread,
        source=where,
        begin=record.begin_ns,
        event=str(record.address) if record.act.startswith("event") else "",
        cores=(record.cube_cores, record.vector_cores),
        kind=getattr(record, "kind", ""),
        sync_all=bool(getattr(record, "sync_all", False)),
        assumed=bool(getattr(record, "assumed", False)),
        limit=getattr(record, "limit", None),
        communicator=getattr(record, "communicator", ""),
        sequence=getattr(record, "sequence", -1),
        engine=getattr(record, "engine", ""),
        ranks=getattr(record, "ranks", 0),
    )


def _of_events(events: Sequence[Mapping[str, Any]], source: str) -> Iterator[_Act]:
    tracks: dict[tuple[int, int], tuple[int, int]] = {}
    for number, event in enumerate(events):
        where = f"{source}: traceEvents[{number}]"
        try:
            act = _of_event(event, tracks, where)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ScheduleError(
                "an event of the trace is not one of the simulator.",
                looked_at=where,
                do="give what toprope run --trace wrote",
            ) from None
        if act is None:
            continue
        if act.act in ("event record", "event wait") and not (act.event or act.communicator):
            raise ScheduleError(
                f"which event {act.act.removeprefix('event ')}s mean is not in the trace.",
                looked_at=where,
                do="record the trace again with this version of toprope",
            )
        yield act


def _of_event(event: Mapping[str, Any], tracks: dict[tuple[int, int], tuple[int, int]], where: str) -> _Act | None:
    """The act; None for one that names a track, or one of the host on no stream."""
    track, args = (int(event["pid"]), int(event["tid"])), event.get("args", {})
    if event["ph"] == "M":
        named = _TRACK.match(str(args.get("name", "")))
        if event["name"] == "thread_name" and named is not None:
            tracks[track] = int(named["device"]), int(named["stream"])
        return None
    if track not in tracks:
        return None
    limit = args.get("limit")
    return _Act(
        str(event["cat"]), str(event["name"]), track[0], *tracks[track], int(args.get("host thread", 0)), where,
        float(event.get("ts", 0)),
        event=str(args.get("event", "")), cores=(int(args.get("cube cores", 0)), int(args.get("vector cores", 0))),
        kind=str(args.get("kind", "")), sync_all=args.get("sync_all") is True,
        assumed=args.get("assumed") is True,
        limit=None if limit is None else (int(limit[0]), int(limit[1])),
        communicator=str(args.get("communicator", "")), sequence=int(args.get("sequence", -1)),
        engine=str(args.get("engine", "")), ranks=int(args.get("ranks", 0)),
    )  # fmt: skip


@dataclass
class _Reader:
    """Queues of all processes while their acts are read one by one."""

    names: Mapping[tuple[int, int], str]
    communicator: str
    queues: dict[tuple[int, int, int | str], Queue] = field(default_factory=dict)
    on_callers: set[str] = field(default_factory=set)  # communicators with collectives on the stream that calls them
    passed: dict[tuple[int, str], str] = field(default_factory=dict)  # latest recording of each event of a process
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    groups: dict[str, set[str]] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    ranks: dict[str, tuple[int, str]] = field(default_factory=dict)
    waited: dict[tuple[int, int], list[str]] = field(default_factory=dict)  # what a host thread has waited for
    heard: dict[tuple[int, int, int, int], int] = field(default_factory=dict)  # how much of it a stream knows

    def read(self, act: _Act) -> None:
        """Read one act: an operator, a collective, an event or a wait."""
        key = (*act.card, act.stream)
        if act.act == "synchronise":
            if act.stream >= 0 and key in self.queues:
                event = self._event(act)
                if self.queues[key].record(event, act.source):
                    self.waited.setdefault((act.pid, act.thread), []).append(event)
            return
        if act.act not in ("operator", "collective", "launch", "event record", "event wait"):
            return
        queue = self.queues.setdefault(key, Queue(f"stream {act.stream}", self.names[act.card]))
        if act.act == "event record":
            event = self._event(act)
            self.passed.pop((act.pid, act.event), None)
            if queue.record(event, act.source):
                self.passed[act.pid, act.event] = event
        elif act.act == "event wait":
            event = act.member if act.communicator else act.event
            if (act.pid, event) in self.passed:
                queue.wait(self.passed[act.pid, event])
        elif act.act == "collective" and act.is_of_group:
            self._order_after_wait(act, queue)
            self._collective_of_group(act, queue)
        else:
            self._order_after_wait(act, queue)
            queue.add(self._op(act, queue.card))

    def _collective_of_group(self, act: _Act, caller: Queue) -> None:
        """As on a card: on a stream of its group, after what the caller's stream holds; who waits for it says so."""
        own = self.queues.setdefault(
            (*act.card, act.communicator), Queue(f"hccl {act.communicator}", self.names[act.card])
        )
        before, after = self._event(act), self._event(act)
        if caller.record(before, act.source):
            own.wait(before)
        own.add(self._op(act, own.card))
        own.record(after, act.source)
        self.passed[act.pid, act.member] = after

    def _event(self, act: _Act) -> str:
        number = self.counts.get(("", ""), 0)
        self.counts["", ""] = number + 1
        return f"{act.pid}:{act.event or 'host'}#{number}"

    def _order_after_wait(self, act: _Act, queue: Queue) -> None:
        """Have work that a host thread gives to a card after a wait begin after what it waited for."""
        waited = self.waited.get((act.pid, act.thread), [])
        key = (*act.card, act.stream, act.thread)
        for event in waited[self.heard.get(key, 0) :]:
            queue.wait(event)
        self.heard[key] = len(waited)

    def _op(self, act: _Act, card: str) -> Op:
        (cube, vector), assumed = act.cores, act.assumed and any(act.cores)
        return Op(
            act.name, cube, vector, act.sync_all or assumed, self._collective(act, card), kind=act.kind,
            limit=act.limit, assumed=assumed, source=act.source,
        )  # fmt: skip

    def _collective(self, act: _Act, card: str) -> Collective | None:
        if act.act == "launch" and not act.communicator:
            return None
        if act.act == "operator" or act.name.removeprefix("hccl::") in ("send", "recv", "recv_anysource"):
            return None  # a message names its two ranks in it, but one from anybody names none
        if act.ranks == 1:
            return None  # it waits for nobody
        name = act.communicator or self.communicator
        if not name:
            raise ScheduleError(
                f"which communicator {act.name} belongs to is not in the trace.",
                looked_at=act.source,
                do="where all cards are in one communicator, give it a name: communicator='world'",
            )
        self.groups.setdefault(name, set()).add(card)
        if act.act == "collective" and not act.is_of_group:
            self.on_callers.add(name)
        if act.engine:
            self.engines[name] = act.engine
        if act.ranks:
            self.ranks[name] = act.ranks, act.source
        sequence = act.sequence if act.sequence >= 0 else self.counts.get((name, card), 0)
        self.counts[name, card] = sequence + 1
        return Collective(name, sequence)


def _program(acts: list[_Act], chip: str, communicator: str, source: str) -> Program:
    keys = sorted({act.card for act in acts if act.device >= 0})
    if not keys:
        raise ScheduleError(f"{source} records nothing on a card.", do="trace a piece of the program that uses a card")
    clash = len({device for _, device in keys}) < len(keys)
    names = {key: f"{key[0]}:{key[1]}" if clash else str(key[1]) for key in keys}
    reader = _Reader(names, communicator)
    # The records are in the order in which the acts ended; a program orders them by their begin.
    for act in sorted(acts, key=lambda act: act.begin):
        if act.device >= 0:
            reader.read(act)
    for group, (ranks, where) in reader.ranks.items():
        if len(reader.groups[group]) < ranks:
            raise ScheduleError(
                f"communicator {group} lacks the records of {ranks - len(reader.groups[group])} of its {ranks} ranks.",
                looked_at=f"{where}; it has cards {', '.join(sorted(reader.groups[group]))}",
                do="give the trace of every process of the run",
            )
    cards = {name: card_of_chip(name, chip, source) for name in names.values()}
    groups = tuple(
        Communicator(
            name,
            tuple(card for card in cards if card in members),
            reader.engines.get(name, ""),
            on_callers_stream=name in reader.on_callers,
        )
        for name, members in reader.groups.items()
    )
    return Program(tuple(cards.values()), streams_of(reader.queues.values()), groups)
