"""The result of a check of cores as SARIF 2.1.0, which CI systems show next to the code. Pure.

Called by `cli.cores` with `--sarif FILE`. Fixed by OASIS SARIF 2.1.0: the names of all keys, "level", and one
`ruleIndex` for each result. Names of rules are those of `cores.findings.RULES`; a new rule needs its sentence in
`_TEXTS`. The texts are free. Tests: tests/cli/test_cli_cores.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import toprope
from toprope.cli.output.cores_text import place, program_text
from toprope.cores.descriptions import cores_text
from toprope.cores.findings import RULES, Level
from toprope.cores.model import OpId, Program

if TYPE_CHECKING:
    from toprope.cores.check import Result

__all__ = ["sarif"]

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_TEXTS = {
    "deadlock": "The streams can wait for each other's cores for ever.",
    "undecided": "Whether the streams can deadlock was not decided.",
    "missing-rank": "A collective has no member on a card of its communicator.",
    "one-card-communicator": "A communicator is seen on one card only: the files of the other ranks are missing.",
    "desync": "Cards run the collectives of a communicator in different order.",
    "cyclic-wait": "Streams, events and collectives wait for each other in a circle.",
    "sync-all-over-limit": "A barrier over more blocks than the limit lets run at the same time.",
    "two-aiv-communicators": "Collectives of two communicators on vector cores can be active together.",
    "unequal-limits": "The ranks of a collective have different limits.",
    "below-hccl-minimum": "A collective may use fewer vector cores than HCCL recommends.",
    "unknown-cores": "The record says neither cores nor kind of an operator.",
}


def sarif(program: Program, result: Result, files: list[str]) -> dict[str, Any]:
    """The log: one run, one result for the verdict where it is not "safe", one for each finding."""
    results = []
    if result.verdict == "deadlock":
        seen = program if result.witness is None else result.witness.program
        cycle = () if result.witness is None else result.witness.cycle()
        told = " -> ".join(map(seen.describe, (*cycle, *cycle[:1])))
        text = f"Deadlock possible on {program_text(program)}." + (f" {told}" if told else f" {result.proof}")
        if (fix := result.fixes.best) is not None:
            text += f" Safe with {fix.op} limited to {cores_text((fix.cube, fix.vector))}."
        results.append(_result("deadlock", "error", text, seen, cycle, files))
    elif result.verdict == "unknown":
        results.append(_result("undecided", "warning", f"Not decided: {result.proof}", program, (), files))
    for each in result.findings:
        level = "error" if each.level is Level.ERROR else "warning"
        results.append(_result(each.rule, level, each.text, program, each.ops, files))
    rules = [
        {
            "id": rule,
            "shortDescription": {"text": _TEXTS.get(rule, rule)},
            "defaultConfiguration": {"level": str(RULES.get(rule, "warning" if rule == "undecided" else "error"))},
        }
        for rule in ("deadlock", "undecided", *RULES)
    ]
    for found in results:
        found["ruleIndex"] = next(number for number, rule in enumerate(rules) if rule["id"] == found["ruleId"])
    driver = {"name": "toprope", "semanticVersion": toprope.__version__, "rules": rules}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(
    rule: str, level: str, text: str, program: Program, ops: tuple[OpId, ...], files: list[str]
) -> dict[str, Any]:
    locations = [_location(place(program, id), program.describe(id), files) for id in ops[:10]]
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": text},
        "locations": locations or [_location("", "", files)],
    }


def _location(where: str, name: str, files: list[str]) -> dict[str, Any]:
    """The file, and the place in it as a logical location; a CSV's place is its line."""
    given = (each for each in sorted(files, key=len, reverse=True) if where.startswith(f"{each}:"))
    file = next(given, where.rpartition(": ")[0] or files[0])  # a folder or a pattern was given, and this file found
    inside = where.removeprefix(f"{file}:").strip()
    physical: dict[str, Any] = {"artifactLocation": {"uri": file.replace("\\", "/")}}
    line = inside.removeprefix("line ").partition(",")[0]
    if inside.startswith("line ") and line.isdigit():
        physical["region"] = {"startLine": int(line)}
    location: dict[str, Any] = {"physicalLocation": physical}
    if name:
        location["logicalLocations"] = [{"name": name, "fullyQualifiedName": inside or name}]
    return location
