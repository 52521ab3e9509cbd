"""A moment of a program in words: how much each operator holds, and what it waits for; pure.

For the output of `toprope cores` (`cli.output`) and the pictures of a run: both say the same in the same words, which
are free choices. Tests: tests/cli/test_cli_cores.py, tests/cores/test_cores_timeline.py.
"""

from __future__ import annotations

from toprope.cores.model import Cores, OpId, Program
from toprope.cores.state import State, Wait

__all__ = ["cores_text", "cycle_texts", "holds_text", "kinds_used", "wait_text"]


def cores_text(cores: Cores) -> str:
    """A number of cores: "16 vector cores", "8 cube and 16 vector cores", "no cores"."""
    cube, vector = cores
    if cube and vector:
        return f"{cube} cube and {vector} vector cores"
    number, kind = (cube, "cube") if cube else (vector, "vector")
    return f"{number} {kind} core{'' if number == 1 else 's'}" if number else "no cores"


def kinds_used(program: Program) -> tuple[bool, bool]:
    """True if any operator uses cube cores, and True if any uses vector cores."""
    cores = [op.cores for _, op in program.ops()]
    return any(cube for cube, _ in cores), any(vector for _, vector in cores)


def holds_text(state: State, id: OpId) -> str:
    """The part of its cores that an operator holds: "32 of 48"; empty for one that uses none."""
    op = state.program.op(id)
    held = state.held_cores(id) if id in state.active else (0, 0)
    parts = [(held[kind], op.cores[kind], name) for kind, name in enumerate(("cube", "vector")) if op.cores[kind]]
    both = len(parts) > 1
    return ", ".join(f"{has} of {wants}" + (f" {name}" if both else "") for has, wants, name in parts)


def wait_text(state: State, wait: Wait) -> str:
    """The reason why an operator waits: "waits for 16 cores", "waits for its peer on card 1"."""
    program = state.program
    op = program.op(wait.op)
    if wait.reason == "cores":
        return f"waits for {_lacking(wait.lacking, op.cores)}"
    if wait.reason == "order":
        return f"waits for {_names(program, wait.on)} to finish"
    collective = op.collective
    absent = program.missing(collective) if collective is not None else ()
    cards = [*dict.fromkeys(program.card_of(each).name for each in wait.on), *absent]
    peers = "its peer on card" if len(cards) == 1 else "its peers on cards"
    return f"waits for {peers} {_names_text(cards)}" + (", which never comes" if absent and not wait.on else "")


def cycle_texts(state: State) -> tuple[str, ...]:
    """The wait-for cycle, a sentence for each of its steps; empty without one."""
    program, cycle = state.program, state.cycle()
    waits = {wait.op: wait for wait in state.waits()}
    texts = []
    for place, id in enumerate(cycle):
        other = cycle[(place + 1) % len(cycle)]
        wait = waits[id]
        name, on = program.describe(id), program.describe(other)
        if wait.reason == "cores":
            held = state.held_cores(other) if other in state.active else (0, 0)
            whose = f"{on} holds {_lacking(held, program.op(other).cores)}" if any(held) else f"kept back for {on}"
            texts.append(f"{name} waits for {_lacking(wait.lacking, program.op(id).cores)}; {whose}")
        elif other in wait.on:
            texts.append(f"{name} waits for {'its peer ' if wait.reason == 'peer' else ''}{on}")
        else:  # the one it waits for is further back in that stream
            behind = tuple(each for each in wait.on if each[0] == other[0]) or wait.on
            peer = "its peer " if wait.reason == "peer" else ""
            texts.append(f"{name} waits for {peer}{_names(program, behind)}, which is behind {on}")
    return tuple(texts)


def _lacking(lacking: Cores, cores: Cores) -> str:
    """Cores that are lacking; their kind is only said of an operator that uses both."""
    lacking = max(lacking[0], 0), max(lacking[1], 0)
    if all(cores):
        return cores_text(lacking)
    number = sum(lacking)
    return f"{number} core{'' if number == 1 else 's'}"


def _names(program: Program, ids: tuple[OpId, ...]) -> str:
    return _names_text([program.describe(each) for each in ids])


def _names_text(names: list[str], most: int = 3) -> str:
    shown = names if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"]
    return " and ".join([*([", ".join(shown[:-1])] if len(shown) > 1 else []), *shown[-1:]])
