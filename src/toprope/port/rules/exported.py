"""Rule TR123: torch.package, which takes along what a file imports.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import VENDORED, File, is_vendored_runtime
from toprope.port.rule import Example, Kind
from toprope.port.syntax.nodes import name_of, nodes_of

__all__ = ["FAMILY"]

FAMILY = Family("exported", "Packages of torch.package", words=[b"PackageExporter", b"persistent_class"])

EXPORTER = FAMILY.rule(
    "TR123",
    Kind.REVIEW,
    "torch.package.PackageExporter, persistent_class: what is saved with its source needs the runtime module",
    why="""A package takes along the modules of the program, and refuses what they import and no pattern names. Ported
    modules import the runtime module, so that the package could not be made any more, on CUDA either. It is named in
    front of the other patterns, since the first that fits decides. toprope must be installed where the package is
    loaded; a vendored file is taken along. A class that is pickled with the source of its module (StyleGAN's
    `persistent_class`) needs the runtime module in the same way where it is loaded.""",
    source="tried: torch.package.PackagingError",
    examples=[
        Example(
            """
            from torch.package import PackageExporter

            with PackageExporter(path) as exporter:
                exporter.intern("net.**")
                exporter.save_pickle("model", "model.pkl", model)
            """,
            """
            from torch.package import PackageExporter

            with PackageExporter(path) as exporter:
                exporter.extern("toprope.**")
                exporter.intern("net.**")
                exporter.save_pickle("model", "model.pkl", model)
            """,
        ),
        Example(
            """
            import torch

            exporter = torch.package.PackageExporter(path)
            exporter.intern("net.**")
            """,
            """
            import torch

            exporter = torch.package.PackageExporter(path)
            exporter.extern("toprope.**")
            exporter.intern("net.**")
            """,
        ),
        Example("import torch\n\nsave(torch.package.PackageExporter(path), model)\n"),
        Example(
            """
            from torch_utils import persistence

            @persistence.persistent_class
            class Net(Module):
                def forward(self, x):
                    return x if x.is_cuda else None
            """,
            """
            from toprope.device import portable
            from torch_utils import persistence

            @persistence.persistent_class
            class Net(Module):
                def forward(self, x):
                    return x if portable.is_accelerator(x) else None
            """,
        ),
    ],
)


@FAMILY.call("torch.package.PackageExporter", "torch.package.package_exporter.PackageExporter")
def _exporter(file: File, node: ast.Call) -> bool:
    vendored = is_vendored_runtime(file.runtime)
    pattern = f'["{VENDORED}", "**.{VENDORED}"]' if vendored else '"toprope.**"'
    call = f"{'intern' if vendored else 'extern'}({pattern})"
    around, first = _named(file, node)
    if around is None:
        file.report(EXPORTER, node, f"let it have .{call} in front of its other patterns")
        return False
    scope = file.walk.parents[around] if isinstance(around, ast.Assign) else around
    if any(isinstance(each, ast.Constant) and str(each.value).startswith(("toprope.", f"**.{VENDORED}"))
           for each in nodes_of(scope)):  # fmt: skip
        return False
    name = ast.unparse(around.targets[0]) if isinstance(around, ast.Assign) else ast.unparse(_target(around, node))
    start, _ = file.source.span(first)
    line = file.source.starts[first.lineno - 1]
    indent = file.source.text[line:start]
    if indent.strip():  # with PackageExporter(path) as exporter: save(exporter)
        file.report(EXPORTER, node, f"let it have .{call} in front of its other patterns")
        return False
    file.report(EXPORTER, node, edits=file.before(first, f"{name}.{call}{file.source.newline}{indent}"))
    return False


@FAMILY.node(ast.ClassDef)
def _persistent(file: File, node: ast.ClassDef) -> bool:
    """A class whose objects are pickled with the source of their module; the first of a file says it for all."""
    decorator = next((each for each in node.decorator_list if name_of(each) == "persistent_class"), None)
    is_said = any(finding.rule is EXPORTER for finding, _ in file.places)
    if decorator is not None and not is_said and ("cuda" in file.source.text or file.imports_runtime):
        file.report(EXPORTER, decorator, _PERSISTENT)
    return False


_PERSISTENT = "each pickle has the source of this module: who loads one needs the runtime module of the port"


def _named(file: File, node: ast.Call) -> tuple[ast.With | ast.AsyncWith | ast.Assign | None, ast.stmt]:
    """The statement that gives an exporter its name, and the statement that runs next."""
    match around := file.parent(node):
        case ast.withitem(optional_vars=ast.Name()):
            block = file.parent(around)
            if isinstance(block, ast.With | ast.AsyncWith):
                return block, block.body[0]
        case ast.Assign(targets=[ast.Name() | ast.Attribute()]):
            outer = file.walk.parents[around]
            for name in ("body", "orelse", "finalbody"):
                statements = getattr(outer, name, None)
                if isinstance(statements, list) and around in statements[:-1]:
                    return around, statements[statements.index(around) + 1]
    return None, file.statement(node)


def _target(block: ast.With | ast.AsyncWith, node: ast.Call) -> ast.expr:
    return next(each.optional_vars for each in block.items if each.context_expr is node and each.optional_vars)
