"""Reason that a log itself gives next to a code, and explanations computed from values of a line; pure.

Called by messages.py. The forms of lines are those of CANN and torch_npu; a computed explanation is a function and a
row of `_COMPUTED`, by the name of a text in texts*.toml. Each way of `of_line` needs a word in `HINTS`, or its lines
are never looked at. Tests: tests/base/test_codes_reasons.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from toprope.codes.model import Explanation

__all__ = ["HINTS", "computed", "fitting", "of_line", "process"]

# texts in small letters, one of which is in every line that of_line finds something in
HINTS = ("reason", "possible cause", "[func:", "[pid: ", "must be ", "should be ", "not implemented for dt_")
LONGEST = 200
SHORTEST = 40  # a shorter reason needs the statement before it: "Value [x] for [y] is invalid. Reason: not in the list"

_BEFORE = (
    re.compile(
        r"^.*?\(?E[0-9A-Z]\d{4}\)?(?:\[PID: ?\d+\])?:? *(?:\[PID: ?\d+\])? *"
        r"(?:\d{4}-[\d.:-]+)? *(?:\(E\w{4,5}\):)? *"
    ),
    re.compile(
        r"^(?:\[?rank ?\d+\]?: *|\([^)]{0,80}pid=\d+\) *"
        r"|(?:ERROR|INFO|WARNING) [\d :.,-]+(?:\[[^\]]*\])? *|\[ERROR\] *)+"
    ),
)  # fmt: skip
_REASON = re.compile(r"\bReasons?: *(.+)|Possible Causes?: *(.+)", re.IGNORECASE)
_BRACKETS = re.compile(r"\breason=\[[^\]]+\]")
_MUST = re.compile(r"\b(?:must|should) be \S|not implemented for DT_")
_REFUSED = re.compile(
    r"E[0-9A-Z]\d{4}:? ?\[PID: ?\d+\].*?(?:unsupport|not support|invalid|mismatch|exceed|out of range|cannot|can't"
    r"|should|must|expect|wrong|illegal|(?:larg|small|great)er than|less than|not match|not equal)",
    re.IGNORECASE,
)
_AFTER = re.compile(r"\[FUNC:.*|\bSolution:.*|\bTraceBack \(most.*", re.IGNORECASE)
_WORDS = re.compile(r"`((?:(?!\.\.\.)[^`])+)`: ")
_PROCESS = re.compile(r"\[?rank ?\d+\]?(?=:)|\([^)]{0,80}pid=\d+\)")


def of_line(line: str) -> str:
    """The reason that a line gives: what is after `Reason:`, or the statement with `reason=[...]` or `must be`.

    Returns:
        At most LONGEST characters, "" if the line gives none.

    Example:
        >>> of_line("EE1001: [PID: 7] It is invalid.Reason: the stream belongs to another context of this card")
        'the stream belongs to another context of this card'
    """
    match = _REASON.search(line)
    given = "" if match is None else match[1] or match[2]
    if len(given) > SHORTEST:
        text = given
    elif given or _BRACKETS.search(line) or _MUST.search(line) or "[FUNC:" in line or _REFUSED.search(line):
        text = line
        for pattern in _BEFORE:
            text = pattern.sub("", text, count=1)
    else:
        return ""
    text = _AFTER.sub("", text).strip().rstrip(".")
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def fitting(what: Explanation, text: str) -> Explanation:
    """An explanation without the possible causes that begin with words (in backticks) which the text does not have."""
    low = f"{text}\n{what.reason}".lower()
    kept = (each for each in what.causes if (match := _WORDS.match(each)) is None or match[1].lower() in low)
    return replace(what, causes=tuple(kept))


def process(line: str) -> str:
    """The rank or process that a line's prefix names, or ""."""
    match = _PROCESS.match(line.lstrip())
    return "" if match is None else match[0]


def computed(what: Explanation, groups: Mapping[str, str | None]) -> Explanation:
    """An explanation with the numbers that follow from the ones in its line."""
    compute = _COMPUTED.get(what.code)
    return what if compute is None else compute(what, groups)


_UNITS = {"B": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0}


def _gib(text: str | None) -> float | None:
    if not text:
        return None
    number, _, unit = text.partition(" ")
    return float(number) * _UNITS.get(unit, 1.0)


def _out_of_memory(what: Explanation, groups: Mapping[str, str | None]) -> Explanation:
    total, allocated, free, reserved = (_gib(groups.get(name)) for name in ("total", "allocated", "free", "reserved"))
    if total is None or free is None or allocated is None:
        return what
    own = allocated if reserved is None else max(reserved, allocated)
    others = total - own - free
    facts = f"of {total:.1f} GiB this process has {own:.1f} and {free:.2f} are free"
    if others > max(2.0, total / 10):
        large = others > total / 4
        held = "other processes hold" if large else "other processes, or CANN and HCCL in this one, hold"
        shared = (
            "another program, container or rank uses the same card: with `privileged: true` a container sees all cards "
            "of the machine, and a mask or device number can name a card in use"
        )
        buffers = "HCCL's buffers (2 x HCCL_BUFFSIZE for each group) and captured graphs are not in torch's numbers"
        return replace(
            what,
            means=f"{held} about {others:.1f} GiB of this card ({facts})",
            causes=(shared,) if large else (shared, buffers),
            try_=(
                "npu-smi info on the host shows the processes of the card: end them, or choose a free card "
                "(ASCEND_RT_VISIBLE_DEVICES, local_rank)",
                "container: remove `privileged: true` and pass the free cards alone",
                "only then: a smaller batch or a lower --gpu-memory-utilization",
            ),
        )
    if own - allocated > max(1.0, own / 5):
        return replace(
            what,
            means=f"the memory is in pieces: {own - allocated:.1f} GiB are reserved and not allocated ({facts})",
            causes=("tensors of changing sizes",),
            try_=("export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", *what.try_[1:]),
        )
    return replace(
        what,
        means=f"this process itself has used up the card ({facts})",
        causes=("model, batch, sequences or cache are too large for the card",),
        try_=("a smaller batch, shorter sequences, or more cards", "vLLM: a lower --gpu-memory-utilization"),
    )


def _mask_order(what: Explanation, groups: Mapping[str, str | None]) -> Explanation:
    numbers = sorted({int(each) for each in re.findall(r"\d+", groups.get("mask") or "")})
    mask = ",".join(map(str, numbers))
    return replace(what, try_=(f"export ASCEND_RT_VISIBLE_DEVICES={mask} before the program starts", *what.try_))


def _abi(what: Explanation, groups: Mapping[str, str | None]) -> Explanation:
    symbol = groups.get("symbol") or ""
    if "__cxx11" in symbol:
        abi, why = 1, "it has __cxx11, so that the library that wants it was built with C++ ABI 1"
    elif re.search(r"(?:E|R|RK|K)S[sS]", symbol):
        abi, why = 0, "it has the old std::string (Ss), so that the library that wants it was built with C++ ABI 0"
    else:
        return what
    other = f"the NNAL that is loaded is then of the other one: source .../nnal/atb/set_env.sh --cxx_abi={abi}"
    return replace(
        what,
        causes=(f"by the name of the symbol {why}", *what.causes),
        try_=(*what.try_, f"{other}, or set ATB_HOME_PATH to .../nnal/atb/latest/atb/cxx_abi_{abi}"),
    )


_COMPUTED: Mapping[str, Callable[[Explanation, Mapping[str, str | None]], Explanation]] = {
    "out-of-memory": _out_of_memory,
    "mask-order": _mask_order,
    "symbols-atb": _abi,
}
