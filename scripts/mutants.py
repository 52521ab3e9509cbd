"""Mutation testing: change one place of a module at a time, and see whether the module's tests fail.

    python scripts/mutants.py                      30 changes of each module of MODULES, drawn by a seed
    python scripts/mutants.py cores/proof/bounds   one module
    python scripts/mutants.py --most 100 --seed 3  more, or others

A change is killed when a test fails, or does not end within the limit. The survivors are printed with their lines: a
test is missing there, or the change makes no difference. The exit status is 1 where fewer than 90 % of a module's
changes are killed. Run by hand. `MODULES` names each module's tests: a test file that is renamed has to follow there.

What a change may be is decided in `changes`, which is free to grow. This file is also the plugin of pytest that puts
the changed module in its place (MUTANT_NAME, MUTANT_FILE).

No test runs it: `--most 3` on one module shows that it works.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "toprope"
MODULES = {
    "sizes": "base/test_sizes.py",
    "chips/catalogue": "base/test_chips.py",
    "visible_devices": "base/test_visible_devices.py base/test_visible_devices_maps.py",
    "codes/reasons": "base/test_codes_reasons.py",
    "cores/proof/bounds": "cores/test_cores_bounds.py cores/test_cores_check.py",
    "cores/planning/order": "cores/test_cores_planning_order.py",
    "tiers/training/tiles": "tiers/test_tiers_tiles.py",
    "tiers/plan/placement": "tiers/test_tiers_placement.py",
    "functions/scheduling/ledger": "functions/test_functions_ledger.py -m 'not slow'",
    "functions/lifecycle": "functions/test_functions_lifecycle_rules.py",
    "estimate/cost/span": "estimate/test_span.py",
}
"""Pure modules, and the files of tests that are to know them, with options of pytest."""

WANTED = 0.9
LIMIT = 120.0
"""Seconds that the tests of a module may take."""

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or,
    ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_OTHER_NAME = {"min": "max", "max": "min", "any": "all", "all": "any"}


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """The parts of a module in which a change makes a difference: no annotations, texts, exports or decorators."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "bases") or isinstance(tree, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Import | ast.ImportFrom | ast.Raise):
                continue
            if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) in ("__all__", "__slots__"):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            yield child
            yield from places(child)


def changes(node: ast.AST) -> Iterator[dict[str, Any]]:
    """The changes that a part of a module can have: fields with other values."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _OTHER:
            yield {"ops": [_OTHER[type(op)]()]}
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in _OTHER:
            yield {"op": _OTHER[type(op)]()}
        case ast.Constant(value=bool() as value):
            yield {"value": not value}
        case ast.Constant(value=int() as value):
            yield {"value": value + 1}
        case ast.Name(id=name, ctx=ast.Load()) if name in _OTHER_NAME:
            yield {"id": _OTHER_NAME[name]}
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield {"test": ast.UnaryOp(ast.Not(), test)}
        case ast.Expr(value=ast.Call()):
            yield {"value": ast.Constant(None)}
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield {"value": ast.Constant(None)}


def mutants(source: str) -> list[tuple[int, str, str]]:
    """All changed versions of a module: line, what was changed to what, source."""
    tree = ast.parse(source)
    found = []
    for index, node in enumerate(places(tree)):
        for change in changes(node):
            other = copy.deepcopy(tree)
            part: Any = next(each for at, each in enumerate(places(other)) if at == index)
            before = ast.unparse(part).splitlines()[0]
            for field, value in change.items():
                setattr(part, field, value)
            after = ast.unparse(ast.fix_missing_locations(part)).splitlines()[0]
            found.append((part.lineno, f"{before}  ->  {after}", ast.unparse(other)))
    return found


def is_killed(module: str, source: str, folder: Path) -> bool:
    """True if a test of the module fails with this source."""
    file = folder / "mutant.py"
    file.write_text(source, encoding="utf-8")
    tests = [f"tests/{name}" if name.endswith(".py") else name for name in shlex.split(MODULES[module])]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = f"{Path(__file__).parent}:{PACKAGE.parent}"
    environment |= {"MUTANT_NAME": f"toprope.{module.replace('/', '.')}", "MUTANT_FILE": str(file)}
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "mutants", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*words, "-m", "not soak", *tests], cwd=ROOT, env=environment, capture_output=True,
            timeout=LIMIT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


class _Loader(SourceFileLoader):
    """Loads a module as if its file had other contents."""

    def get_code(self, fullname: str) -> CodeType:
        """The code of the changed source."""
        source = Path(os.environ["MUTANT_FILE"]).read_text(encoding="utf-8")
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder:
    """Finds the changed module; pytest loads this file as a plugin."""

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != os.environ["MUTANT_NAME"]:
            return None
        file = str(PACKAGE.parent / f"{fullname.replace('.', '/')}.py")
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, file))


def tell(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Change, test, and tell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", default=[*MODULES], help="such as cores/proof/bounds")
    parser.add_argument("--most", type=int, default=30, help="changes of each module")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    is_good = True
    with tempfile.TemporaryDirectory() as name:
        for module in given.modules:
            source = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
            if is_killed(module, source, Path(name)):
                raise SystemExit(f"{module}: its tests fail without a change")
            every = mutants(source)
            drawn = random.Random(given.seed).sample(every, min(given.most, len(every)))
            alive = [each for each in sorted(drawn) if not is_killed(module, each[2], Path(name))]
            share = 1 - len(alive) / len(drawn)
            is_good &= share >= WANTED
            killed = len(drawn) - len(alive)
            tell(f"{module}: {killed} of {len(drawn)} killed ({share:.0%}), of {len(every)}")
            for line, what, _ in alive:
                tell(f"    line {line}: {what}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
elif os.environ.get("MUTANT_NAME"):
    sys.meta_path.insert(0, _Finder())
