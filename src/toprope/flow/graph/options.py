"""Options of a graph, of the graph itself and of `init`; reads the deploy file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from toprope.flow.exceptions import DfException
from toprope.flow.graph.deploy_file import parse
from toprope.flow.stage.spec import Deploy

__all__ = ["DEPLOY", "card", "check_key", "deploys", "is_compile_only"]

DEPLOY = "ge.experiment.data_flow_deploy_info_path"
_DEVICE, _LOGICAL = "ge.exec.deviceId", "ge.exec.logicalDeviceId"
_KEY, _KEY_PATTERN = "ge.graph_key", re.compile(r"[A-Za-z0-9_-]{1,128}")


def card(options: Mapping[str, str]) -> int:
    """The card of stages that the deploy file does not name: "ge.exec.deviceId", "ge.exec.logicalDeviceId", else 0.

    Raises:
        DfException: the number cannot be read.
    """
    if _DEVICE in options:
        if not options[_DEVICE].strip().isdecimal():
            raise DfException(f"{_DEVICE} must be a card's number, got {options[_DEVICE]!r}")
        return int(options[_DEVICE])
    if _LOGICAL in options:
        text = options[_LOGICAL].strip()
        match = re.fullmatch(r"\[(\d+):(\d+)\]", text)
        if match is None:
            raise DfException(f"{_LOGICAL} must be such as [0:0], got {text!r}")
        return int(match[2])
    return 0


def deploys(options: Mapping[str, str], nodes: Iterable[str], *, strict: bool) -> dict[str, Deploy]:
    """Return the cards of stages by the deploy file; empty without a file.

    Raises:
        DfException: the file cannot be read, or there is none and the reference needs one (strict).
    """
    path = options.get(DEPLOY)
    if path is None:
        if strict:
            raise DfException(f"there is no deploy file: set {DEPLOY}")
        return {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DfException(f"the deploy file {path} cannot be read: {error}") from error
    return parse(text, nodes)


def check_key(options: Mapping[str, str]) -> None:
    """Refuse a key of the compile cache that cannot be; nothing is compiled here, so nothing else of it is needed.

    Raises:
        DfException: it has other characters than A-Z, a-z, 0-9, _ and -, or more than 128.
    """
    if _KEY in options and not _KEY_PATTERN.fullmatch(options[_KEY]):
        raise DfException(f"{_KEY} must match {_KEY_PATTERN.pattern}, got {options[_KEY]!r}")


def is_compile_only(options: Mapping[str, str]) -> bool:
    """True if nothing is to run: "ge.runFlag" is "0"."""
    return options.get("ge.runFlag") == "0"
