"""The tests of a file: those in its source, and how they ended in a run.

Called by `__main__`. Counted from the source, so that a test that never ran is missed too. Fixed by pytest and torch:
JUnit's XML, the names of parametrised and instantiated tests, and the decorators that say how many cards a test wants.

Tests: tests/project/test_vendor_tests.py.
"""

from __future__ import annotations

import ast
import json
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Results", "cards_wanted", "disabled_tests", "static_tests"]

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


def disabled_tests(text: str) -> set[tuple[str, str]]:
    """Class and name of the tests in a list as torch_npu.testing reads it: `{"test_a (__main__.TestA)": [...]}`."""
    found = set()
    for entry in json.loads(text):
        name, _, of_class = entry.partition(" ")
        found.add((of_class.strip("()").rpartition(".")[2], name))
    return found


def cards_wanted(source: str) -> dict[str, int]:
    """Count the cards that a test's source asks for: by its and its class's decorators, and by the class's world_size.

    Numbers that are no constants of the file count as none.
    """
    tree = ast.parse(source)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def number(node: ast.expr | None) -> int:
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Name):
            value = constants.get(node.id)
        return value if type(value) is int else 0

    def decorated(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        calls = [each for each in node.decorator_list if isinstance(each, ast.Call) and each.args]
        names = [getattr(each.func, "id", getattr(each.func, "attr", "")) for each in calls]
        wanted = ("skipIfUnsupportMultiNPU", "skip_if_lt_x_gpu")
        return max((number(call.args[0]) for call, name in zip(calls, names, strict=True) if name in wanted), default=0)

    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            of_class = decorated(node)
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == "world_size":
                    returns = [inner.value for inner in ast.walk(each) if isinstance(inner, ast.Return)]
                    of_class = max(of_class, *map(number, returns), 0)
                elif isinstance(each, ast.Assign) and "world_size" in [getattr(to, "id", "") for to in each.targets]:
                    of_class = max(of_class, number(each.value))
            for each in node.body:
                if _is_test(each):
                    found[f"{node.name}.{each.name}"] = max(of_class, decorated(each))  # type: ignore[arg-type, attr-defined]
        elif _is_test(node):
            found[node.name] = decorated(node)  # type: ignore[arg-type, attr-defined]
    return found


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def _first_error(element: ET.Element) -> str:
    """The line that names the error, of a failure in a report."""
    lines = [line.removeprefix("E").strip() for line in (element.text or "").splitlines() if line.startswith("E  ")]
    message = (element.get("message") or "").splitlines()
    return (lines[:1] or message[:1] or ["error"])[0][:300]


def _owners(tests: list[str], of_class: str, made: str) -> list[str]:
    """The tests of the source that a test of a run was made of: those with the longest name that begins as it does.

    test_a_npu_float16 of TestANPU is made of TestA.test_a, if there is no TestA.test_a_npu; test_a_out is not, if there
    is a TestA.test_a_out.
    """
    name = made.partition("[")[0]
    named = [(test, *test.rpartition(".")[::2]) for test in tests]
    found = [each for each in named if name == each[2] or name.startswith(f"{each[2]}_")]
    found = [each for each in found if len(each[2]) == max(len(other[2]) for other in found)]
    same = [each for each in found if each[1] and of_class.startswith(each[1])]
    same = [each for each in same if len(each[1]) == max(len(other[1]) for other in same)]
    return [test for test, *_ in same or found]


@dataclass
class Results:
    """How the tests of a file ended: "passed", "failed" or "skipped" by name, and the begin of the error of a failure.

    A test of the source that the run made several of passed if all of them did, apart from those that skip themselves.
    One that the run did not make failed.
    """

    ended: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def only(self, tests: list[str]) -> Results:
        """The results of some of the tests."""
        ended, errors = ({test: each[test] for test in tests if test in each} for each in (self.ended, self.errors))
        return Results(ended, errors)

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
            owners = _owners(tests, case.get("classname", "").rpartition(".")[2], case.get("name", ""))
            if wrong is not None and not owners:  # the file could not be imported
                otherwise = text
            for test in owners:
                cases.setdefault(test, []).append((ended, text))
        for test in tests:
            of_it = cases.get(test, [])
            counts = Counter(ended for ended, _ in of_it)
            results.ended[test] = next((ended for ended in ORDER if counts[ended]), "failed")
            if results.ended[test] == "failed":
                results.errors[test] = next((text for ended, text in of_it if ended == "failed"), otherwise)
        return results
