"""The tests of a file: those in its source, and how they ended in a run."""

from __future__ import annotations

import ast
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Results", "static_tests"]

ORDER = ("failed", "passed", "skipped")


def static_tests(source: str) -> list[str]:
    """Tests in the source of a file: "Class.test_name", or "test_name" outside of classes. No source counts as none."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found += [f"{node.name}.{each.name}" for each in node.body if _is_test(each)]
        elif _is_test(node):
            found.append(node.name)  # type: ignore[attr-defined]
    return found


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def _first_error(element: ET.Element) -> str:
    """The line that names the error, of a failure in a report."""
    lines = [line.removeprefix("E").strip() for line in (element.text or "").splitlines() if line.startswith("E  ")]
    message = (element.get("message") or "").splitlines()
    return (lines[:1] or message[:1] or ["error"])[0][:300]


@dataclass
class Results:
    """How the tests of a file ended: "passed", "failed" or "skipped" by name, and the begin of the error of a failure.

    A test of the source that the run made several of passed if all of them did, apart from those that skip themselves.
    One that the run did not make failed.
    """

    ended: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, tests: list[str], report: str, otherwise: str) -> Results:
        """Read a run.

        Args:
            tests: of the source.
            report: JUnit's XML, "" where the run made none.
            otherwise: error of tests that the report does not have.
        """
        results = cls()
        cases: dict[str, list[tuple[str, str]]] = {}
        for case in ET.fromstring(report).iter("testcase") if report else ():
            wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
            ended = "failed" if wrong is not None else "skipped" if case.find("skipped") is not None else "passed"
            text = "" if wrong is None else _first_error(wrong)
            name = case.get("name", "").partition("[")[0]
            if wrong is not None and not name.startswith("test_"):  # the file could not be imported
                otherwise = text
            cases.setdefault(name, []).append((ended, text))
        for test in tests:
            name = test.rpartition(".")[2]
            of_it = [
                each
                for made, several in cases.items()
                if made == name or made.startswith(f"{name}_")
                for each in several
            ]
            counts = Counter(ended for ended, _ in of_it)
            results.ended[test] = next((ended for ended in ORDER if counts[ended]), "failed")
            if results.ended[test] == "failed":
                results.errors[test] = next((text for ended, text in of_it if ended == "failed"), otherwise)
        return results
