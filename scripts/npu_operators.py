"""Write src/toprope/support/npu_operators.toml: the operators of torch_npu with their schemas.

    python scripts/npu_operators.py WHEEL OP_PLUGIN

WHEEL is a published torch-npu wheel, which is read and never imported; OP_PLUGIN a clone of Ascend/op-plugin (a bare
one is enough). The operators of the namespace `atb` are defined in C++ of that repository and only there.

Run by hand for a new release of torch_npu. `toprope.support.npu_operators` reads the table; `toprope.compat` takes the
operators' schemas from it, and docs/npu_operators.md lists them. Fixed by the vendor: paths and keys of the YAML files,
the names of products in the pages' tables, and torchnpugen's changes of schemas (`_schemas`).

No test runs it; after a run, tests/compat/test_torch_npu_facade.py and tests/compat/test_compat_torch_npu.py hold what
reads the table.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).resolve().parents[1] / "src" / "toprope" / "support" / "npu_operators.toml"
FUNCTIONS = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"
PAGES = "docs/zh/custom_APIs"
# Chip families, as toprope.chips names them, and the product that the pages list for each.
PRODUCTS = {
    "Ascend 310P (Atlas inference series)": "Atlas 推理系列",
    "Ascend 910 (Atlas training series)": "Atlas 训练系列",
    "Ascend 910B (Atlas A2)": "Atlas A2",
    "Ascend 910C (Atlas A3), one die": "Atlas A3",
    "Ascend 950": "Ascend 950",
}
OLDER = ("Ascend 310P (Atlas inference series)", "Ascend 910 (Atlas training series)")
# These have a gradient without an entry in derivatives.yaml: their dispatch is AutogradPrivateUse1, or
# torchnpugen/autograd/gen_variable_type.py of Ascend/pytorch names them.
ALSO_DIFFERENTIABLE = ("npu_format_cast", "npu_moe_token_unpermute", "npu_moe_token_unpermute_with_routing_map")


def _git(repository: str, *arguments: str) -> str:
    command = ["git", "-C", repository, "-c", "core.quotepath=off", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _schemas(functions: dict[str, Any]) -> dict[str, str]:
    """Name with overload, and the rest of the schema that torch_npu registers.

    It is not quite the schema of the file (torchnpugen/custom_functions.py of Ascend/pytorch): several outputs are one
    list, and a parameter `self` is called `input`.
    """
    found = {}
    for entry in (entry for part in ("custom", "symint") for entry in functions[part] if isinstance(entry, dict)):
        name, _, rest = entry["func"].partition("(")
        outputs = rest.count("Tensor(", 0, rest.index(") ->")) if name.endswith(".out") else 0
        if outputs > 1:
            arguments = rest.rpartition(") ->")[0].split(", ")[:-outputs]
            rest = f"{', '.join(arguments)}, Tensor[] out) -> ({', '.join(['Tensor'] * outputs)})"
        found[name] = "(" + re.sub(r"\bself\b(?=[,)])", "input", rest)
    return dict(sorted(found.items()))


def _atb_schemas(repository: str) -> dict[str, str]:
    """The operators that TORCH_LIBRARY(atb, ...) defines; a schema may be several C++ strings in a row."""
    found = {}
    for path in _git(repository, "ls-tree", "-r", "--name-only", "HEAD", "op_plugin/ops/atb").split():
        source = _git(repository, "show", f"HEAD:{path}")
        if "TORCH_LIBRARY_FRAGMENT(atb" not in source and "TORCH_LIBRARY(atb" not in source:
            continue
        for strings in re.findall(r'm\.def\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', source):
            schema = "".join(json.loads(part) for part in re.findall(r'"(?:[^"\\]|\\.)*"', strings))
            name, _, rest = schema.partition("(")
            found[name] = f"({rest}"
    return dict(sorted(found.items()))


def _differentiable(repository: str, names: set[str]) -> list[str]:
    entries = yaml.safe_load(_git(repository, "show", "HEAD:op_plugin/config/derivatives.yaml"))["backward"]
    return sorted({entry["name"].partition("(")[0] for entry in entries} & names | {*ALSO_DIFFERENTIABLE})


def _pages(repository: str) -> dict[str, str]:
    """The page of an API, by its name in torch_npu."""
    found = {}
    for path in _git(repository, "ls-tree", "-r", "--name-only", "HEAD", PAGES).splitlines():
        match = re.fullmatch(r"(?:（beta）)?torch_npu-(_?\w+)\.md", path.rpartition("/")[2])
        if match and "/torch_npu/" in path:
            found[match[1]] = path.removeprefix(f"{PAGES}/")
    return dict(sorted(found.items()))


def _without(repository: str, paths: dict[str, str]) -> dict[str, list[str]]:
    """Chip families on which an operator is not, by its page's table of products.

    The older families count as left out if the table does not list them. Pages older than the A3 and the 950 do not
    list these, although later releases have the operators there, so they are left out only with a cross.
    """
    found = {}
    for name, path in paths.items():
        text = _git(repository, "show", f"HEAD:{PAGES}/{path}")
        rows = re.findall(r"<term>([^|]*)</term>[^|]*\|\s*([√×xX])\s*\|", text)
        listed = {
            family for family, product in PRODUCTS.items() if any(product in row for row, sign in rows if sign == "√")
        }
        crossed = {
            family for family, product in PRODUCTS.items() if any(product in row for row, sign in rows if sign != "√")
        }
        absent = sorted(({*OLDER} | crossed) - listed) if rows else []
        if absent:
            found[name] = absent
    return found


def _lines(wheel: Path, repository: str) -> Iterator[str]:
    """Yield the lines of the table."""
    with zipfile.ZipFile(wheel) as files:
        functions = yaml.safe_load(files.read(FUNCTIONS))
    exposed = sorted(
        {entry["func"].partition("(")[0].partition(".")[0] for entry in functions["custom"] if entry.get("exposed")}
    )
    commit = _git(repository, "rev-parse", "HEAD").strip()[:8]
    deprecated = yaml.safe_load(_git(repository, "show", "HEAD:op_plugin/config/deprecated.yaml"))["deprecated"]
    npu, paths = _schemas(functions), _pages(repository)
    yield "# Operators of torch_npu. Written by scripts/npu_operators.py; do not edit."
    plugin = f"Ascend/op-plugin {commit}: op_plugin/ops/atb, op_plugin/config, {PAGES}"
    yield f'source = "{wheel.name}: {FUNCTIONS}; {plugin}"'
    yield f'pages_at = "{PAGES}"'
    yield ""
    yield "# Operators that torch_npu documents as its own, and those with a gradient."
    for title, names in (("exposed", exposed), ("differentiable", _differentiable(repository, {*npu}))):
        yield f"{title} = ["
        yield from (f'    "{name}",' for name in names)
        yield "]"
    for title, table in (
        ("npu", npu),
        ("atb", _atb_schemas(repository)),
        ("pages", paths),
        ("without", _without(repository, paths)),
        ("deprecated", {entry["name"]: entry.get("replace", "") for entry in deprecated}),
    ):
        yield ""
        yield f"[{title}]"
        for name, value in table.items():
            yield f'"{name}" = {json.dumps(value, ensure_ascii=False)}'


def _main() -> None:
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python scripts/npu_operators.py WHEEL OP_PLUGIN\n")
        raise SystemExit(2)
    TARGET.write_text("\n".join(_lines(Path(sys.argv[1]), sys.argv[2])) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _main()
