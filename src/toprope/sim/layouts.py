"""Layouts of the memory and files that the C++ core keeps: written by scripts/layouts.py from its headers.

The readers of traces, counters, cards and rehearsals use it. Change the header in csrc/core, then run the script;
tests/sim/test_layouts.py compares.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

__all__ = [
    "BAD_NUMBERS",
    "HELD_KINDS",
    "MAX_ASSUMED",
    "MAX_CARDS",
    "MAX_DIMENSIONS",
    "MAX_HOST_SITES",
    "MAX_KINDS",
    "MAX_LACKS",
    "MAX_LINES",
    "MAX_PROCESSES",
    "MAX_SIGNATURES",
    "MAX_SITES",
    "MAX_TENSORS",
    "SAMPLES",
    "STEP_KINDS",
    "Act",
    "Assumed",
    "BadNumber",
    "CardCounters",
    "CardMemory",
    "Cards",
    "Counters",
    "FirstNumber",
    "Held",
    "HostSite",
    "Kind",
    "Lack",
    "LackRecord",
    "Line",
    "ProcessSlot",
    "Record",
    "Rehearsal",
    "Role",
    "Sample",
    "SharedCard",
    "Signature",
    "Signatures",
    "Site",
    "SiteSteps",
    "Step",
    "TensorShape",
    "Trace",
]

MAX_CARDS = 16
MAX_KINDS = 2048
MAX_SITES = 256
MAX_ASSUMED = 512
MAX_LACKS = 32
MAX_HOST_SITES = 128
MAX_PROCESSES = 256
MAX_DIMENSIONS = 6
MAX_TENSORS = 8
MAX_SIGNATURES = 8192
HELD_KINDS = 5
SAMPLES = 256
MAX_LINES = 512
STEP_KINDS = 3
BAD_NUMBERS = 2


class CardCounters(ctypes.LittleEndianStructure):
    """`struct CardCounters` of counters.h."""

    physical: int
    capacity: int
    allocated: int
    peak_allocated: int
    reserved: int
    peak_reserved: int
    allocations: int
    oom_retries: int
    ooms: int
    kernels: int
    _fields_ = (
        ("physical", ctypes.c_uint64),
        ("capacity", ctypes.c_uint64),
        ("allocated", ctypes.c_uint64),
        ("peak_allocated", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
        ("peak_reserved", ctypes.c_uint64),
        ("allocations", ctypes.c_uint64),
        ("oom_retries", ctypes.c_uint64),
        ("ooms", ctypes.c_uint64),
        ("kernels", ctypes.c_uint64),
    )


class Kind(ctypes.LittleEndianStructure):
    """`struct Kind` of counters.h."""

    name: bytes
    undocumented: int
    calls: int
    _fields_ = (
        ("name", ctypes.c_char * 48),
        ("undocumented", ctypes.c_uint64),
        ("calls", ctypes.c_uint64),
    )


class Site(ctypes.LittleEndianStructure):
    """`struct Site` of counters.h."""

    operation: bytes
    file: bytes
    line: int
    back: int
    waits: int
    _fields_ = (
        ("operation", ctypes.c_char * 48),
        ("file", ctypes.c_char * 144),
        ("line", ctypes.c_uint64),
        ("back", ctypes.c_uint64),
        ("waits", ctypes.c_uint64),
    )


class HostSite(ctypes.LittleEndianStructure):
    """`struct HostSite` of counters.h."""

    operation: bytes
    file: bytes
    line: int
    times: int
    bytes_to_host: int
    bytes_back: int
    _fields_ = (
        ("operation", ctypes.c_char * 80),
        ("file", ctypes.c_char * 144),
        ("line", ctypes.c_uint64),
        ("times", ctypes.c_uint64),
        ("bytes_to_host", ctypes.c_uint64),
        ("bytes_back", ctypes.c_uint64),
    )


class Assumed(ctypes.LittleEndianStructure):
    """`struct Assumed` of counters.h."""

    kind: int
    position: int
    dtype: int
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("position", ctypes.c_int16),
        ("dtype", ctypes.c_int16),
    )


class Lack(IntEnum):
    """`enum Lack` of counters.h."""

    KERNEL = 1
    DTYPE = 2
    LAYOUT = 3
    REFUSED = 4
    BY_TEST = 5
    FORMAT = 6
    INDEX = 7
    NAME = 8
    DIMENSIONS = 9


class LackRecord(ctypes.LittleEndianStructure):
    """`struct LackRecord` of counters.h."""

    name: bytes
    lack: int
    dtype: int
    times: int
    last_ns: int
    text: bytes
    _fields_ = (
        ("name", ctypes.c_char * 64),
        ("lack", ctypes.c_uint32),
        ("dtype", ctypes.c_int32),
        ("times", ctypes.c_uint64),
        ("last_ns", ctypes.c_uint64),
        ("text", ctypes.c_char * 424),
    )


class Counters(ctypes.LittleEndianStructure):
    """`struct Counters` of counters.h."""

    magic: bytes
    pid: int
    chip: bytes
    torch_version: bytes
    flags: int
    mask: bytes
    card_count: int
    copies_to_card: int
    bytes_to_card: int
    copies_from_card: int
    bytes_from_card: int
    copies_between: int
    bytes_between: int
    synchronisations: int
    operators: int
    cards: ctypes.Array[CardCounters]
    kind_count: int
    kinds: ctypes.Array[Kind]
    site_events: int
    site_count: int
    assumed_count: int
    lack_count: int
    sites: ctypes.Array[Site]
    assumed: ctypes.Array[Assumed]
    lacks: ctypes.Array[LackRecord]
    torch_npu: bytes
    host_site_count: int
    host_sites: ctypes.Array[HostSite]
    _fields_ = (
        ("magic", ctypes.c_char * 8),
        ("pid", ctypes.c_uint64),
        ("chip", ctypes.c_char * 32),
        ("torch_version", ctypes.c_char * 32),
        ("flags", ctypes.c_uint64),
        ("mask", ctypes.c_char * 64),
        ("card_count", ctypes.c_uint64),
        ("copies_to_card", ctypes.c_uint64),
        ("bytes_to_card", ctypes.c_uint64),
        ("copies_from_card", ctypes.c_uint64),
        ("bytes_from_card", ctypes.c_uint64),
        ("copies_between", ctypes.c_uint64),
        ("bytes_between", ctypes.c_uint64),
        ("synchronisations", ctypes.c_uint64),
        ("operators", ctypes.c_uint64),
        ("cards", CardCounters * MAX_CARDS),
        ("kind_count", ctypes.c_uint64),
        ("kinds", Kind * MAX_KINDS),
        ("site_events", ctypes.c_uint64),
        ("site_count", ctypes.c_uint64),
        ("assumed_count", ctypes.c_uint64),
        ("lack_count", ctypes.c_uint64),
        ("sites", Site * MAX_SITES),
        ("assumed", Assumed * MAX_ASSUMED),
        ("lacks", LackRecord * MAX_LACKS),
        ("torch_npu", ctypes.c_char * 64),
        ("host_site_count", ctypes.c_uint64),
        ("host_sites", HostSite * MAX_HOST_SITES),
    )


class SharedCard(ctypes.LittleEndianStructure):
    """`struct SharedCard` of cards.h."""

    reserved: int
    unhealthy: int
    spare: ctypes.Array[ctypes.c_uint64]
    _fields_ = (
        ("reserved", ctypes.c_uint64),
        ("unhealthy", ctypes.c_uint64),
        ("spare", ctypes.c_uint64 * 6),
    )


class ProcessSlot(ctypes.LittleEndianStructure):
    """`struct ProcessSlot` of cards.h."""

    pid: int
    started: int
    name: bytes
    reserved: ctypes.Array[ctypes.c_uint64]
    _fields_ = (
        ("pid", ctypes.c_uint64),
        ("started", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("reserved", ctypes.c_uint64 * MAX_CARDS),
    )


class Cards(ctypes.LittleEndianStructure):
    """`struct Cards` of cards.h."""

    cards: ctypes.Array[SharedCard]
    processes: ctypes.Array[ProcessSlot]
    _fields_ = (
        ("cards", SharedCard * MAX_CARDS),
        ("processes", ProcessSlot * MAX_PROCESSES),
    )


class Act(IntEnum):
    """`enum Act` of trace.h."""

    OPERATOR = 1
    COPY_TO_CARD = 2
    COPY_FROM_CARD = 3
    COPY_BETWEEN = 4
    ALLOCATE = 5
    FREE = 6
    EVENT_RECORD = 7
    EVENT_WAIT = 8
    SYNCHRONISE = 9
    TASK = 10
    COLLECTIVE = 11
    KERNEL = 12
    LAUNCH = 13
    COMPOSITE = 14
    STEP = 15


class Record(ctypes.LittleEndianStructure):
    """`struct Record` of trace.h."""

    begin_ns: int
    end_ns: int
    bytes: int
    address: int
    thread: int
    stream: int
    kind: int
    act: int
    device: int
    other_device: int
    dtype: int
    cube: int
    vector: int
    _fields_ = (
        ("begin_ns", ctypes.c_int64),
        ("end_ns", ctypes.c_int64),
        ("bytes", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("thread", ctypes.c_uint32),
        ("stream", ctypes.c_int32),
        ("kind", ctypes.c_uint16),
        ("act", ctypes.c_uint8),
        ("device", ctypes.c_int8),
        ("other_device", ctypes.c_int8),
        ("dtype", ctypes.c_int8),
        ("cube", ctypes.c_uint8),
        ("vector", ctypes.c_uint8),
    )


class Trace(ctypes.LittleEndianStructure):
    """`struct Trace` of trace.h."""

    magic: bytes
    capacity: int
    written: int
    began_ns: int
    pid: int
    wall_ns: int
    spare: ctypes.Array[ctypes.c_uint64]
    _fields_ = (
        ("magic", ctypes.c_char * 8),
        ("capacity", ctypes.c_uint64),
        ("written", ctypes.c_uint64),
        ("began_ns", ctypes.c_int64),
        ("pid", ctypes.c_uint64),
        ("wall_ns", ctypes.c_int64),
        ("spare", ctypes.c_uint64 * 2),
    )


class Role(IntEnum):
    """`enum Role` of signatures.h."""

    READ = 0
    WRITTEN = 1
    RESULT = 2


class TensorShape(ctypes.LittleEndianStructure):
    """`struct TensorShape` of signatures.h."""

    dtype: int
    dimensions: int
    role: int
    form: int
    spare: ctypes.Array[ctypes.c_uint8]
    bytes: int
    sizes: ctypes.Array[ctypes.c_int64]
    _fields_ = (
        ("dtype", ctypes.c_int8),
        ("dimensions", ctypes.c_uint8),
        ("role", ctypes.c_uint8),
        ("form", ctypes.c_uint8),
        ("spare", ctypes.c_uint8 * 4),
        ("bytes", ctypes.c_uint64),
        ("sizes", ctypes.c_int64 * MAX_DIMENSIONS),
    )


class Signature(ctypes.LittleEndianStructure):
    """`struct Signature` of signatures.h."""

    kind: int
    tensors: int
    spare: int
    operations: int
    more_read: int
    more_written: int
    shapes: ctypes.Array[TensorShape]
    _fields_ = (
        ("kind", ctypes.c_uint16),
        ("tensors", ctypes.c_uint16),
        ("spare", ctypes.c_uint32),
        ("operations", ctypes.c_uint64),
        ("more_read", ctypes.c_uint64),
        ("more_written", ctypes.c_uint64),
        ("shapes", TensorShape * MAX_TENSORS),
    )


class Signatures(ctypes.LittleEndianStructure):
    """`struct Signatures` of signatures.h."""

    magic: bytes
    count: int
    signatures: ctypes.Array[Signature]
    calls: ctypes.Array[ctypes.c_uint64]
    _fields_ = (
        ("magic", ctypes.c_char * 8),
        ("count", ctypes.c_uint64),
        ("signatures", Signature * MAX_SIGNATURES),
        ("calls", ctypes.c_uint64 * MAX_SIGNATURES),
    )


class Held(IntEnum):
    """`enum Held` of rehearsal.h."""

    OTHERS = 0
    WEIGHTS = 1
    GRADIENTS = 2
    OPTIMIZER = 3
    ACTIVATIONS = 4
    NOT_COUNTED = 255


class Step(IntEnum):
    """`enum Step` of rehearsal.h."""

    TRAINING = 0
    INFERENCE = 1
    FORWARD = 2


class BadNumber(IntEnum):
    """`enum BadNumber` of rehearsal.h."""

    NAN = 0
    OVERFLOW = 1


class Line(ctypes.LittleEndianStructure):
    """`struct Line` of rehearsal.h."""

    file: bytes
    line: int
    _fields_ = (
        ("file", ctypes.c_char * 144),
        ("line", ctypes.c_uint64),
    )


class Sample(ctypes.LittleEndianStructure):
    """`struct Sample` of rehearsal.h."""

    ns: int
    bytes: ctypes.Array[ctypes.c_uint64]
    _fields_ = (
        ("ns", ctypes.c_int64),
        ("bytes", ctypes.c_uint64 * HELD_KINDS),
    )


class CardMemory(ctypes.LittleEndianStructure):
    """`struct CardMemory` of rehearsal.h."""

    total: int
    peak: int
    is_rising: int
    peak_born: int
    kinds: ctypes.Array[ctypes.c_uint64]
    wanted: int
    wanted_line: int
    runtime: int
    to_come: ctypes.Array[ctypes.c_uint64]
    sample_ns: int
    samples: ctypes.Array[Sample]
    live: ctypes.Array[ctypes.Array[ctypes.c_uint64]]
    at_peak: ctypes.Array[ctypes.Array[ctypes.c_uint64]]
    at_shortage: ctypes.Array[ctypes.Array[ctypes.c_uint64]]
    _fields_ = (
        ("total", ctypes.c_uint64),
        ("peak", ctypes.c_uint64),
        ("is_rising", ctypes.c_uint64),
        ("peak_born", ctypes.c_uint64),
        ("kinds", ctypes.c_uint64 * HELD_KINDS),
        ("wanted", ctypes.c_uint64),
        ("wanted_line", ctypes.c_uint64),
        ("runtime", ctypes.c_uint64),
        ("to_come", ctypes.c_uint64 * 2),
        ("sample_ns", ctypes.c_int64),
        ("samples", Sample * SAMPLES),
        ("live", (ctypes.c_uint64 * HELD_KINDS) * MAX_LINES),
        ("at_peak", (ctypes.c_uint64 * HELD_KINDS) * MAX_LINES),
        ("at_shortage", (ctypes.c_uint64 * HELD_KINDS) * MAX_LINES),
    )


class SiteSteps(ctypes.LittleEndianStructure):
    """`struct SiteSteps` of rehearsal.h."""

    first: ctypes.Array[ctypes.c_uint64]
    last: ctypes.Array[ctypes.c_uint64]
    seen: ctypes.Array[ctypes.c_uint64]
    _fields_ = (
        ("first", ctypes.c_uint64 * STEP_KINDS),
        ("last", ctypes.c_uint64 * STEP_KINDS),
        ("seen", ctypes.c_uint64 * STEP_KINDS),
    )


class FirstNumber(ctypes.LittleEndianStructure):
    """`struct FirstNumber` of rehearsal.h."""

    operation: bytes
    line: int
    _fields_ = (
        ("operation", ctypes.c_char * 48),
        ("line", ctypes.c_uint64),
    )


class Rehearsal(ctypes.LittleEndianStructure):
    """`struct Rehearsal` of rehearsal.h."""

    magic: bytes
    pid: int
    smallest: int
    began_ns: int
    line_count: int
    steps: ctypes.Array[ctypes.c_uint64]
    looked_up: ctypes.Array[ctypes.c_uint64]
    lines: ctypes.Array[Line]
    sites: ctypes.Array[SiteSteps]
    lack_lines: ctypes.Array[ctypes.c_uint64]
    numbers: ctypes.Array[FirstNumber]
    cards: ctypes.Array[CardMemory]
    _fields_ = (
        ("magic", ctypes.c_char * 8),
        ("pid", ctypes.c_uint64),
        ("smallest", ctypes.c_uint64),
        ("began_ns", ctypes.c_int64),
        ("line_count", ctypes.c_uint64),
        ("steps", ctypes.c_uint64 * STEP_KINDS),
        ("looked_up", ctypes.c_uint64 * STEP_KINDS),
        ("lines", Line * MAX_LINES),
        ("sites", SiteSteps * MAX_SITES),
        ("lack_lines", ctypes.c_uint64 * MAX_LACKS),
        ("numbers", FirstNumber * BAD_NUMBERS),
        ("cards", CardMemory * MAX_CARDS),
    )
