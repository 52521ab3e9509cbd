"""DataParallel in another file of a program, and the files that are imported into one program with it.

A batch that is scaled by the number of cards in `train.py` is for the DataParallel of `model.py`.

Part of `facts`; used by `conditions.scaled`. Tests: tests/port/test_port_unseen_seventh.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from toprope.port.syntax.nodes import Nodes, name_of

__all__ = ["in_one_program", "makes_replicas"]

_REPLICAS = "DataParallel"
_PROCESSES = {"DistributedDataParallel", "init_process_group", "spawn"}
"""Names of a program that can also start a process for each card, and may count the cards for that."""


def makes_replicas(nodes: Nodes) -> bool:
    """Return whether a file makes a DataParallel, and has nothing that starts a process for each card."""
    names = {_REPLICAS} | {
        each.asname for each in nodes.all if isinstance(each, ast.alias) and each.name == _REPLICAS and each.asname
    }
    if not any(name_of(each.func) in names for each in nodes.calls):
        return False
    return not any(name_of(each) in _PROCESSES or getattr(each, "name", "") in _PROCESSES for each in nodes.all)


def in_one_program(files: Iterable[tuple[str, Iterable[str], bool]]) -> dict[str, str]:
    """Return the modules that are in one program with a DataParallel, each with the module that makes it.

    Args:
        files: the last name of each file as a module, the full names of what it imports, and whether it makes a
            DataParallel. Files of the same name are taken together.
    """
    imported: dict[str, set[str]] = {}
    makers: set[str] = set()
    for name, names, makes in files:
        imported.setdefault(name, set()).update(part for each in names for part in each.split("."))
        makers |= {name} if makes else set()
    found: dict[str, str] = {}
    for first in sorted(imported) if makers else ():
        program, ahead = {first}, [first]
        while ahead:
            more = (imported[ahead.pop()] & imported.keys()) - program
            program |= more
            ahead += more
        for name in program if makers & program else ():
            if others := sorted(makers & program - {name}):
                found.setdefault(name, others[0])
    return found
