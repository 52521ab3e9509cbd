"""Baseline: a file with the known places, so that CI fails only for new ones.

A place is identified by its file, its rule and its text, so lines may move. If a file has the same place more often
than the baseline, the rest is new. Hints are not in a baseline, as CI does not fail for them.

Called by `cli.port --baseline`; the form of the file is an interface with CI, see docs/port.md. Tests:
tests/port/test_port_cli.py, tests/port/test_port_options.py.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from toprope.errors import UsageError
from toprope.port.finding import Finding, Ported
from toprope.whole_file import write_named

__all__ = ["mark_known", "read", "write"]

Place = tuple[str, str, str]


def read(path: Path) -> Counter[Place]:
    """Read a baseline: the count of each known place.

    Raises:
        UsageError: it cannot be read, or is no baseline.
    """
    try:
        found = json.loads(path.read_bytes())
        if found["version"] != 1:
            raise ValueError(f"its version is {found['version']}")
        places: Counter[Place] = Counter()
        for each in found["findings"]:
            places[str(each["path"]), str(each["rule"]), str(each["text"])] += int(each["count"])
        return places
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", do="make it with --write-baseline") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is no baseline.", looked_at=f"{type(error).__name__}: {error}", do="make it with --write-baseline"
        ) from None


def write(path: Path, files: Sequence[Ported], *, written: bool = False) -> int:
    """Write the places to a baseline, without converted ones if the ported files are written too; return their number.

    Raises:
        UsageError: it cannot be written.
    """
    places = Counter(
        _place(path, file, finding) for file in files for finding in file.sites if not (written and finding.converted)
    )
    rows = [
        {"path": file, "rule": rule, "text": text, "count": count}
        for (file, rule, text), count in sorted(places.items())
    ]
    said = json.dumps({"version": 1, "findings": rows}, ensure_ascii=False, indent=1) + "\n"
    write_named(path, said)
    return sum(places.values())


def mark_known(path: Path, files: Sequence[Ported]) -> int:
    """Mark the findings that are in the baseline; return their number."""
    left = read(path)
    known = 0
    for file in files:
        for finding in file.sites:
            place = _place(path, file, finding)
            if left[place] > 0:
                left[place] -= 1
                finding.known = True
                known += 1
    return known


def _place(baseline: Path, file: Ported, finding: Finding) -> Place:
    """Identity of a place: its file, relative to the baseline's folder, its rule, and its text without blanks."""
    name = os.path.relpath(os.path.realpath(file.path), os.path.realpath(baseline.parent))
    return name.replace(os.sep, "/"), finding.rule.code, " ".join(finding.before.split())
