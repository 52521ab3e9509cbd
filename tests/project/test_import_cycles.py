"""The exceptions from the import contract `acyclic` in pyproject.toml.

import-linter checks the contract itself in `make lint`; here is that the list of exceptions only shrinks.
"""

import tomllib
from itertools import takewhile
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]


def test_every_exception_still_closes_a_cycle() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    acyclic = next(contract for contract in contracts if contract["id"] == "acyclic")
    exceptions = [each.split(" -> ") for each in acyclic["ignore_imports"]]
    graph = grimp.build_graph("toprope", cache_dir=None)
    for importer, imported in exceptions:
        graph.remove_import(importer=importer, imported=imported)
    for importer, imported in exceptions:
        pairs = zip(importer.split("."), imported.split("."), strict=False)
        package = ".".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        assert not graph.nominate_cycle_breakers(package)
        graph.add_import(importer=importer, imported=imported)
        assert graph.nominate_cycle_breakers(package), f"remove {importer} -> {imported} from the list"
        graph.remove_import(importer=importer, imported=imported)
