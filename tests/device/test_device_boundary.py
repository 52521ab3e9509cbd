"""Only device/, sim/ and compat/ ask torch for its devices; device and sim do not import each other.

Holds the rule of the architecture (docs/architecture.md) by reading all sources.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "toprope"
# estimate/measured/verify_card.py is a program for others, which toprope itself never imports.
MAY = ("device", "sim", "compat")
MAY_FILES = ("estimate/measured/verify_card.py",)
FILES = [
    path.relative_to(PACKAGE).as_posix()
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in MAY and path.relative_to(PACKAGE).as_posix() not in MAY_FILES
]


def asks(tree: ast.AST) -> list[str]:
    """A file's questions to torch: imports of torch_npu, torch.cuda and torch.npu, and reads of the latter two."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names if forbidden(each.name)]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module or ""
            found += [module] if forbidden(module) else []
            found += [f"{module}.{each.name}" for each in node.names if forbidden(f"{module}.{each.name}")]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.cuda", "torch.npu"):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "import_module", "__import__"):
            values = [each.value for each in node.args if isinstance(each, ast.Constant)]
            whole = ast.unparse(node)
            if "torch_npu" in values or (whole.startswith("getattr(torch,") and {"npu", "cuda"} & set(values)):
                found.append(whole)
    return found


def forbidden(name: str) -> bool:
    return name.split(".")[0] == "torch_npu" or ".".join(name.split(".")[:2]) in ("torch.cuda", "torch.npu")


def test_nobody_else_asks_torch_for_its_devices():
    assert all((PACKAGE / file).is_file() for file in MAY_FILES)
    found = {file: asks(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))) for file in FILES}
    assert {file: what for file, what in found.items() if what} == {}


def test_the_rooms_that_may_do_ask():
    text = (PACKAGE / "device" / "cuda.py").read_text(encoding="utf-8")
    assert len(asks(ast.parse(text))) > 3
    assert len(FILES) > 20


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import torch_npu", ["torch_npu"]),
        ("import torch_npu.npu.utils as u", ["torch_npu.npu.utils"]),
        ("from torch_npu.npu import synchronize", ["torch_npu.npu", "torch_npu.npu.synchronize"]),
        ("from torch import cuda as c", ["torch.cuda"]),
        ("import torch.cuda", ["torch.cuda"]),
        ("from torch.cuda import amp", ["torch.cuda", "torch.cuda.amp"]),
        ("torch.cuda.is_available()", ["torch.cuda"]),
        ("x = torch.npu", ["torch.npu"]),
        ("getattr(torch, 'npu', None)", ["getattr(torch, 'npu', None)"]),
        ("import_module('torch_npu')", ["import_module('torch_npu')"]),
        ("text = 'import torch_npu; torch.cuda'", []),
        ("torch.device('npu')", []),
        ("from .torch_npu import x", []),
        ("self.torch.accelerator.is_available()", []),
    ],
)
def test_the_search_itself(line, what):
    assert asks(ast.parse(line)) == what


def test_device_and_sim_do_not_import_each_other():
    for package, other in (("device", "toprope.sim"), ("sim", "toprope.device")):
        for path in (PACKAGE / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    names = [node.module or "", *(f"{node.module}.{each.name}" for each in node.names)]
                assert not [name for name in names if (name + ".").startswith(other + ".")], path
