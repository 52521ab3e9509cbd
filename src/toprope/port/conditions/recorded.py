"""Names of a profile's figures, which are converted only together with what the profile records.

A file whose profiles all stay CUDA's shows them by CUDA's names: `sort_by="cuda_time_total"` stays there too.

Called by `engine`. Tests: tests/port/test_port_unseen_seventh.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from toprope.port.finding import Finding

__all__ = ["hold_figures"]

_RECORDS = {"TR091", "TR091b"}
_FIGURES = "TR091a"


def hold_figures(findings: Iterable[Finding]) -> None:
    """Hold back the names of figures in a file where all that is recorded stays CUDA's."""
    findings = list(findings)
    records = [each for each in findings if each.rule.code in _RECORDS]
    if not records or any(each.converted for each in records):
        return
    for each in findings:
        if each.rule.code == _FIGURES and each.converted:
            each.held_back = f"it stays with what the profile in line {records[0].line} records"
