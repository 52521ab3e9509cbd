"""No package has an import cycle, and the import contract `acyclic` in pyproject.toml has no exceptions.

import-linter checks the contract itself in `make lint`; here the import graph is checked without the contract.
"""

import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]


def test_the_contract_has_no_exceptions() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    acyclic = next(contract for contract in contracts if contract["id"] == "acyclic")
    assert "ignore_imports" not in acyclic


def test_no_package_has_an_import_cycle() -> None:
    graph = grimp.build_graph("toprope", cache_dir=None)
    packages = [each for each in sorted(graph.modules) if graph.find_children(each)]
    assert "toprope.functions.local.worker" in packages
    assert [each for each in packages if graph.nominate_cycle_breakers(each)] == []
