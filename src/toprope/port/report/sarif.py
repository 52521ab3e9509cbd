"""The findings as SARIF 2.1.0, which CI systems show next to the code. Pure.

Called by `cli.port --format sarif`. The form is OASIS SARIF 2.1.0. Tests: tests/port/test_port_reports.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from toprope.port.finding import Finding, Ported
from toprope.port.rule import HINT, Kind, Rule

__all__ = ["root_of", "sarif"]

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_BASE = "SRCROOT"
_ADDRESS = re.compile(r"https://[^\s;,]+")
_LEVELS = {str(Kind.PRESERVING): "note", str(Kind.REVIEW): "warning", str(Kind.NOT_CONVERTIBLE): "error", HINT: "note"}


def sarif(files: Sequence[Ported], version: str, rules: Iterable[Rule], root: Path | None = None) -> dict[str, Any]:
    """The log: one run, its rules, a result for each finding, and a notification for each file that was skipped.

    Args:
        files: what the port said about each.
        version: of toprope.
        rules: all rules; those without a finding are left out.
        root: the project's folder, from `root_of`: files in it are named from there, whatever the current folder is.
            Left out, files are named as they were given.
    """
    used = {finding.rule.code for file in files for finding in file.findings}
    told = sorted((rule for rule in rules if rule.code in used), key=lambda rule: rule.code)
    index = {rule.code: number for number, rule in enumerate(told)}
    results = [_result(_place(file.path, root), finding, index) for file in files for finding in file.findings]
    skipped = [
        {
            "level": "warning",
            "message": {"text": f"skipped: {file.skipped}"},
            "locations": [{"physicalLocation": _place(file.path, root)}],
        }
        for file in files
        if file.skipped
    ]
    driver = {
        "name": "toprope port",
        "semanticVersion": version,
        "rules": [_rule(rule) for rule in told],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": results,
        **({"originalUriBaseIds": {_BASE: {"uri": f"{root.as_uri()}/"}}} if root is not None else {}),
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": skipped}],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {
            "text": f"{rule.why} More: {rule.page}",
            "markdown": f"{rule.why}\n\nSource: {rule.source}\n\nMore: `{rule.page}`",
        },
        **({"helpUri": found[0]} if (found := _ADDRESS.search(rule.source)) else {}),
        "defaultConfiguration": {"level": _LEVELS[rule.label]},
        "properties": {"class": rule.label, "family": rule.family},
    }


def root_of(paths: Iterable[str | Path]) -> Path:
    """The folder of the project that holds these files and folders: of the git repository or of pyproject.toml.

    Where there is none it is the folder that holds all of them.
    """
    every = [Path(path).absolute() for path in paths]
    top = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in every]))
    marks = [
        folder for name in (".git", "pyproject.toml") for folder in (top, *top.parents) if (folder / name).exists()
    ]
    return marks[0] if marks else top


def _place(path: str, root: Path | None) -> dict[str, Any]:
    if root is not None:
        full = Path(path).absolute()
        if full.is_relative_to(root):
            return {"artifactLocation": {"uri": quote(full.relative_to(root).as_posix()), "uriBaseId": _BASE}}
    return {"artifactLocation": {"uri": quote(path.replace("\\", "/"))}}


def _result(place: dict[str, Any], finding: Finding, index: dict[str, int]) -> dict[str, Any]:
    text = finding.said
    if finding.held_back:
        text = f"{text} (not rewritten: {finding.held_back})"
    elif finding.converted:
        text = f"{text}: {finding.after}" if "\n" not in finding.after else text
    region = {
        "startLine": finding.line, "startColumn": finding.column, "endLine": finding.end_line,
        "endColumn": finding.end_column, "snippet": {"text": finding.before},
    }  # fmt: skip
    result: dict[str, Any] = {
        "ruleId": finding.rule.code,
        "ruleIndex": index[finding.rule.code],
        "level": _LEVELS[finding.label],
        "message": {"text": text},
        "locations": [{"physicalLocation": {**place, "region": region}}],
        "properties": {"converted": finding.converted},
    }
    if finding.known:
        result["baselineState"] = "unchanged"
    if finding.seen:
        result["properties"]["seen"] = finding.seen
    if finding.cell is not None:
        result["locations"][0]["logicalLocations"] = [{"name": f"cell {finding.cell}"}]
    return result
