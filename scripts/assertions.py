"""Compare the assertions of the tests with those of a base commit.

    python scripts/assertions.py [--base COMMIT]

An assertion is an `assert` statement, a `pytest.raises` or `pytest.warns`, or a call of a function named `assert_...`.
Conditions are compared as normalised source, without the message of an `assert` and the parameters of a test. Functions
are paired by their names, wherever the file is now. An assertion that is missing in its function counts as moved if
another function has gained the same. The exit status is 1 if one is gone or changed, except upper bounds on wall-clock
times below 5 s.

For contributors who change tests and want to show that none became weaker; nothing calls it in CI.
tests/project/test_assertions.py holds the rules of pairing.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from lines import BASE, commit_files, tree_files

SHORT = 5.0  # s: an upper bound below it fails on a loaded machine
_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
_PASSED_ON = {"abs", "max", "min", "round", "sorted", "sum"}  # of a time, these are times


@dataclass(frozen=True)
class Assertion:
    """One assertion; `bound` is its upper bound on a wall-clock time in seconds, None if it has none."""

    text: str
    path: str
    line: int
    bound: float | None


class _Times:
    """Wall-clock times among the expressions of a module: clock calls, and names and functions that hold them."""

    def __init__(self, tree: ast.Module) -> None:
        self._names: set[str] = set()
        self._numbers: dict[str, float] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                number = self.number(node.value)
                if number is not None:
                    self._numbers |= {each.id: number for each in node.targets if isinstance(each, ast.Name)}
        found = -1
        while found != len(self._names):
            found = len(self._names)
            for each in ast.walk(tree):
                self._learn(each)

    def _learn(self, node: ast.AST) -> None:
        """Add the names that a statement binds to a wall-clock time, or to a number."""
        if isinstance(node, ast.Assign) and self.timed(node.value):
            self._names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.FunctionDef):
            if any(isinstance(each, ast.Return) and self.timed(each.value) for each in ast.walk(node)):
                self._names.add(node.name)
            for parameter, default in zip(reversed(node.args.args), reversed(node.args.defaults), strict=False):
                number = self.number(default)
                if number is not None:
                    self._numbers.setdefault(parameter.arg, number)
        elif isinstance(node, ast.Call) and any(map(self.timed, node.args)):
            name, _, method = ast.unparse(node.func).rpartition(".")
            if method == "append":
                self._names.add(name)

    def timed(self, node: ast.expr | None) -> bool:
        """True if the expression is a wall-clock time or holds some."""
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _PASSED_ON:
                return any(self.timed(each) for each in node.args)
            if name == "time":
                return ast.unparse(node.func) == "time.time"
            return name in _CLOCKS or (isinstance(node.func, ast.Name) and name in self._names)
        if isinstance(node, ast.Name):
            return node.id in self._names
        if isinstance(node, ast.BinOp):
            return self.timed(node.left) or (self.timed(node.right) and not isinstance(node.op, ast.Sub))
        if isinstance(node, ast.Subscript):
            return self.timed(node.value)
        if isinstance(node, ast.List | ast.Tuple):
            return any(self.timed(each) for each in node.elts)
        return isinstance(node, ast.ListComp | ast.GeneratorExp) and self.timed(node.elt)

    def number(self, node: ast.expr) -> float | None:
        """The value of a numeric constant, or of a name of the module for one."""
        if isinstance(node, ast.Name):
            return self._numbers.get(node.id)
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return float(node.value)
        return None

    def bound(self, condition: ast.expr) -> float | None:
        """The lowest upper bound on a wall-clock time in a condition."""
        bounds = []
        for each in ast.walk(condition):
            if not isinstance(each, ast.Compare):
                continue
            sides = [each.left, *each.comparators]
            for left, operator, right in zip(sides, each.ops, sides[1:], strict=False):
                if isinstance(operator, ast.Gt | ast.GtE):
                    left, right = right, left
                elif not isinstance(operator, ast.Lt | ast.LtE):
                    continue
                number = self.number(right)
                if number is not None and self.timed(left):
                    bounds.append(number)
        return min(bounds, default=None)


def _text(node: ast.AST) -> str | None:
    """The normalised source of an assertion, None for other nodes."""
    if isinstance(node, ast.Assert):
        return f"assert {ast.unparse(node.test)}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name.startswith("assert_") or ast.unparse(node.func) in ("pytest.raises", "pytest.warns"):
            return ast.unparse(node)
    return None


Functions = dict[tuple[str, str], list[Assertion]]


def functions(files: Iterable[tuple[str, str]]) -> Functions:
    """Assertions of the tests by path and qualified name of the function; the name is "" outside functions."""
    found: Functions = {}

    def visit(node: ast.AST, path: str, name: str) -> None:
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.Assert | ast.Call) and (text := _text(each)):
                bound = times.bound(each.test) if isinstance(each, ast.Assert) else None
                found.setdefault((path, name), []).append(Assertion(text, path, each.lineno, bound))
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                visit(each, path, f"{name}.{each.name}".lstrip("."))
            else:
                visit(each, path, name)

    for path, text in files:
        if path.startswith("tests/") and path.endswith(".py"):
            tree = ast.parse(text)
            times = _Times(tree)
            visit(tree, path, "")
    return found


@dataclass
class Comparison:
    """Base and present assertions, and those of the base that are moved, and gone with what may stand for them now."""

    base: list[Assertion]
    now: list[Assertion]
    moved: list[Assertion]
    gone: list[tuple[Assertion, str | None]]


def compare(base: Functions, now: Functions) -> Comparison:
    """Pair the functions by name and take away what both have."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    for key in now:
        by_name.setdefault(key[1], []).append(key)
    left = {key: list(each) for key, each in now.items()}
    missing: list[tuple[Assertion, tuple[str, str] | None]] = []
    for (path, name), assertions in base.items():
        texts = Counter(each.text for each in assertions)

        def fitness(key: tuple[str, str], path: str = path, texts: Counter[str] = texts) -> tuple[bool, int]:
            shared = texts & Counter(each.text for each in left[key])
            return PurePosixPath(key[0]).name == PurePosixPath(path).name, shared.total()

        pairs = by_name.get(name, [])
        if not name:  # code outside functions: found within its file only
            pairs = [each for each in pairs if PurePosixPath(each[0]).name == PurePosixPath(path).name]
        pair = max(pairs, key=fitness, default=None)
        for each in assertions:
            if not (pair and _take(left[pair], each.text)):
                missing.append((each, pair))
    free = [each for rest in left.values() for each in rest]
    comparison = Comparison(
        [each for some in base.values() for each in some], [each for some in now.values() for each in some], [], []
    )
    for each, pair in missing:
        if _take(free, each.text):
            comparison.moved.append(each)
        else:
            near = difflib.get_close_matches(each.text, [other.text for other in left[pair]] if pair else [], 1)
            comparison.gone.append((each, near[0] if near else None))
    return comparison


def _take(assertions: list[Assertion], text: str) -> bool:
    for number, each in enumerate(assertions):
        if each.text == text:
            del assertions[number]
            return True
    return False


def _short(assertion: Assertion) -> bool:
    return assertion.bound is not None and assertion.bound < SHORT


def main(arguments: list[str]) -> int:
    """Print what is gone or changed, and the counts; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default=BASE, metavar="COMMIT", help=f"the commit to compare with ({BASE})")
    options = parser.parse_args(arguments)
    result = compare(functions(commit_files(options.base)), functions(tree_files()))
    for each, near in result.gone:
        label = "gone (wall-clock time below 5 s)" if _short(each) else "gone" if near is None else "changed"
        sys.stdout.write(f"{each.path}:{each.line}: {label}: {each.text}\n" + (f"  now: {near}\n" if near else ""))
    timed = [each for each in result.base if each.bound is not None]
    short = [each for each, _ in result.gone if _short(each)]
    others = len(result.gone) - len(short)
    sys.stdout.write(
        f"{len(result.base):,} assertions at {options.base}, {len(result.now):,} now.\n"
        f"{len(result.base) - len(result.gone):,} of the old are kept, {len(result.moved):,} in another function.\n"
        f"{others:,} are gone or changed, and {len(short):,} more that bound a wall-clock time below 5 s.\n"
        f"Wall-clock times had {sum(map(_short, timed)):,} upper bounds below 5 s and "
        f"{sum(not _short(each) for each in timed):,} of 5 s or more; "
        f"below 5 s are now {sum(map(_short, result.now)):,}.\n"
    )
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
