"""The deploy file: which stage runs on which cards; pure.

    {"batch_deploy_info": [{"flow_node_list": ["decode", "model"], "logic_device_list": "0:0:0~1:0"}]}

Read for the settings of a graph (`graph.settings`). The format and its limits are CANN's: an address is
cluster:server:device, with the number of a NUMA node behind it or not. `a~b` stands for all numbers from a to b;
addresses are separated by commas. A stage has an instance for each of its addresses. Other servers than 0:0 are
refused. Tests: tests/flow/test_flow_deploy.py.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from toprope.flow.exceptions import DfException
from toprope.flow.stage.spec import Deploy

__all__ = ["addresses", "parse", "template"]

_SEGMENT = re.compile(r"(\d{1,5})(?:~(\d{1,5}))?")
_LARGEST, _MOST = 32767, 65535
_KEYS = ("batch_deploy_info", "deploy_info")


def addresses(text: str) -> list[tuple[int, ...]]:
    """The addresses that a text names, in their order.

    Raises:
        DfException: it names none, a range runs backwards, or there are too many.
    """
    if not isinstance(text, str):
        raise DfException(f"an address must be a text, got {text!r}")
    found: list[tuple[int, ...]] = []
    for each in text.split(","):
        segments = each.strip().split(":")
        if len(segments) not in (3, 4):
            raise DfException(f"an address is cluster:server:device or cluster:server:device:numa, got {each!r}")
        sides = [_numbers(segment, each) for segment in segments]
        count = 1
        for side in sides:
            count *= len(side)
        if len(found) + count > _MOST:
            raise DfException(f"{text!r} names more than {_MOST} addresses")
        found += itertools.product(*sides)
    return found


def _numbers(segment: str, address: str) -> range:
    match = _SEGMENT.fullmatch(segment)
    if match is None:
        raise DfException(f"{segment!r} in the address {address!r} is no number of up to 5 digits, and no range a~b")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if first > last or (match[2] is not None and last > _LARGEST):
        raise DfException(f"the range {segment!r} in the address {address!r} must run upwards, to {_LARGEST} at most")
    return range(first, last + 1)


def parse(text: str, nodes: Iterable[str] | None = None) -> dict[str, Deploy]:
    """Parse a deploy file: the cards of each stage.

    Args:
        text: the file's text.
        nodes: the stages' names; the file must list each. None for no such check.

    Raises:
        DfException: the file has another form, a node is listed twice, or one is missing.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise DfException(f"the deploy file is no JSON: {error}") from error
    if not isinstance(content, dict) or not any(key in content for key in _KEYS):
        raise DfException(f"the deploy file must have {' or '.join(_KEYS)}")
    found: dict[str, Deploy] = {}
    for names, where in _entries(content):
        deploy = Deploy(tuple(_device(each) for each in addresses(where)))
        for name in names:
            if not isinstance(name, str):
                raise DfException(f"a node's name in the deploy file must be a text, got {name!r}")
            if name in found:
                raise DfException(f"{name} is in the deploy file twice")
            found[name] = deploy
    missing = sorted(set(nodes or ()) - set(found))
    if missing:
        raise DfException(f"the deploy file does not have {', '.join(missing)}")
    return found


def _device(address: tuple[int, ...]) -> int:
    if address[0] or address[1]:
        text = ":".join(map(str, address))
        raise DfException(f"the address {text} is of another server: stages run on this one (0:0)")
    return address[2]


def _entries(content: Mapping[str, Any]) -> Iterable[tuple[list[Any], Any]]:
    for key, names, where in (
        ("batch_deploy_info", "flow_node_list", "logic_device_list"),
        ("deploy_info", "flow_node_name", "logic_device_id"),
    ):
        rows = content.get(key, [])
        if not isinstance(rows, list):
            raise DfException(f"{key} of the deploy file must be a list")
        for row in rows:
            if not isinstance(row, dict) or names not in row or where not in row:
                raise DfException(f"an entry of {key} must have {names} and {where}, got {row!r}")
            listed = row[names] if key == "batch_deploy_info" else [row[names]]
            if not isinstance(listed, list):
                raise DfException(f"{names} must be a list, got {listed!r}")
            yield listed, row[where]


def template(nodes: Iterable[str]) -> str:
    """A deploy file that puts each of these nodes on card 0."""
    rows = [{"flow_node_list": [each], "logic_device_list": "0:0:0:0"} for each in nodes]
    return json.dumps({"batch_deploy_info": rows}, indent=4, ensure_ascii=False) + "\n"
