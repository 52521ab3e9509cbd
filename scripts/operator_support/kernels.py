"""Kernels that a commit registers: op-plugin's lists of functions, and the list of Ascend/pytorch itself.

Called by `__main__` and `host_code`. An "interface" is one of the two of CANN for which op-plugin has kernels: `acl_op`
(aclop, the older one) or `op_api` (aclnn). The lists' form is the vendor's and changes between his branches: each is a
case here, and older branches must still be read.

No test runs it. scripts/operator_draw.py reads the same lists another way; tests/support/test_operators_on_card.py
holds the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from operator_support.repository import Repository

__all__ = ["NEW", "OLD", "Kernel", "of_torch_npu", "of_wheel", "op_plugin"]

OLD, NEW = "acl_op", "op_api"
FUNCTIONS = "op_plugin/config/op_plugin_functions.yaml"
OF_A_TORCH = "op_plugin/config/v{}r{}/op_plugin_functions.yaml"
NATIVE = "torch_npu/csrc/aten/npu_native_functions.yaml"
_SECTIONS = ("official", "symint")


@dataclass(frozen=True)
class Kernel:
    """A registered operator: the interfaces that it has a kernel of, and its schema after the name, if given."""

    interfaces: frozenset[str]
    schema: str = ""


def op_plugin(repository: Repository, commit: str, torch: str) -> dict[str, Kernel]:
    """Operators of ATen for which op-plugin has a kernel, for one torch API ("2.7").

    Up to 6.0.rc2 each torch has a list of its own, and from 6.0.rc2 on there is a common one, whose entries say for
    which torch they hold.
    """
    texts = ((path, repository.text(commit, path)) for path in (OF_A_TORCH.format(*torch.split(".")), FUNCTIONS))
    return _merge(entry for path, text in texts for entry in _entries(text, torch, common=path == FUNCTIONS))


def _merge(entries: Iterable[tuple[str, frozenset[str]]]) -> dict[str, Kernel]:
    """One kernel for each name, with the interfaces of all its entries."""
    found: dict[str, Kernel] = {}
    for function, interfaces in entries:
        name, _, schema = function.partition("(")
        known = found.get(name.strip())
        found[name.strip()] = Kernel(interfaces | (known.interfaces if known else frozenset()), schema)
    return found


def _entries(text: str, torch: str, *, common: bool) -> Iterator[tuple[str, frozenset[str]]]:
    data = yaml.load(text, Loader=yaml.CSafeLoader) if text else {}
    every = data.get("all_version", [])
    for entry in (entry for section in _SECTIONS for entry in data.get(section) or ()):
        interfaces = frozenset(_interfaces(entry, f"v{torch}", every, common))
        if interfaces:
            yield entry["func"], interfaces


def _interfaces(entry: Mapping[str, Any], version: str, every: list[str], common: bool) -> Iterator[str]:
    """Yield the interfaces for which an entry of the list has a kernel in this version of torch."""
    if "impl_ns" in entry:  # 5.0.rc3 to 6.0.rc2: one interface for each version
        interfaces = [interface.strip() for interface in entry["impl_ns"].split(",")]
        listed = re.split(r",\s+", str(entry.get("version", "")))
        if not common:
            yield from interfaces
        elif len(interfaces) == len(listed):
            yield from (interface for interface, one in zip(interfaces, listed, strict=True) if f"v{one}" == version)
        else:
            raise ValueError(f"{entry['func']}: {len(interfaces)} interfaces for {len(listed)} versions")
        return
    for interface in (OLD, NEW):
        if interface in entry and version in _versions(entry[interface], every):
            yield interface


def _versions(value: object, every: list[str]) -> list[str]:
    """Torch APIs of "all_version", of "v2.1, v2.2" and of the closed range [v2.1, newest]."""
    if value == "all_version":
        return every
    if isinstance(value, list):
        first, last = (every.index(every[-1] if one == "newest" else one) for one in value)
        return every[first : last + 1]
    return [one.strip() for one in str(value).split(",")]


def of_torch_npu(repository: Repository, commit: str) -> dict[str, Kernel]:
    """Operators of ATen that Ascend/pytorch registers itself: memory, views and shapes."""
    data = yaml.load(repository.text(commit, NATIVE), Loader=yaml.CSafeLoader) or {}
    return _merge(_registered(data.get("supported") or ()))


def of_wheel(data: Mapping[str, Any]) -> dict[str, Kernel]:
    """The same from the list that a wheel has: npu_native_functions_by_codegen.yaml, which holds both."""
    return _merge(
        one for section in ("supported", "symint", "autograd") for one in _registered(data.get(section) or ())
    )


def _registered(entries: Iterable[Any]) -> Iterator[tuple[str, frozenset[str]]]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry, frozenset({NEW})
        else:
            yield entry["func"], frozenset(interface.strip() for interface in entry.get("impl_ns", NEW).split(","))
