"""Rules TR102 to TR102c and TR105: imports of torch.cuda, other names for it, and what no other rule knows.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay. More tests: tests/port/test_port_programs.py.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.registry import table
from toprope.port.rule import Example, Kind
from toprope.port.runtime.no_import import is_unbound_torch
from toprope.port.runtime.stand_ins import refused
from toprope.port.syntax.edits import Edit

__all__ = ["FAMILY"]

FAMILY = Family("names", "Names for torch.cuda", words=[b"cuda", b"aten::_"])

_DOCS = "https://docs.pytorch.org/docs/stable/cuda.html"

MODULE = FAMILY.rule(
    "TR102", Kind.PRESERVING, "from torch import cuda, import torch.cuda as tc: gone with the last use",
    why="""What is called through another name for torch.cuda is found and rewritten. The import goes where nothing is
    left that needs it; an import that nobody uses here stays, for another file may.""",
    source=_DOCS,
    examples=[
        Example(
            """
            import torch
            import torch.cuda as tc
            from torch import cuda, nn

            tc.synchronize()
            cuda.empty_cache()
            """,
            """
            import torch
            from torch import nn
            from toprope.device import portable

            portable.synchronize()
            portable.empty_cache()
            """,
        ),
        Example(
            """
            import torch
            import torch.cuda

            torch.cuda.synchronize()
            """,
            """
            import torch
            from toprope.device import portable

            portable.synchronize()
            """,
        ),
        Example(
            """
            from torch import cuda as c

            def run(c):
                return c.empty_cache()
            """,
        ),
    ],
)  # fmt: skip
UNKNOWN = FAMILY.rule(
    "TR102a", Kind.REVIEW, "torch.cuda itself as a value, or a name in it that no rule knows: left as it is",
    why="""A program that hands torch.cuda on, or uses a name that is not in the catalogue, needs a person's look.""",
    source=_DOCS,
    examples=[
        Example(
            """
            import torch

            backend = torch.cuda
            torch.cuda.something_new()
            """
        ),
    ],
)  # fmt: skip
QUOTED = FAMILY.rule(
    "TR102b", Kind.REVIEW, 'a name of torch.cuda in a text, as in mock.patch("torch.cuda.device_count"): left as it is',
    why="""What a text names is looked up when the program runs: a test that puts something in its place reaches ported
    code on CUDA, and nothing elsewhere.""",
    source="unittest.mock",
    examples=[
        Example(
            """
            from unittest.mock import patch

            with patch("torch.cuda.get_device_capability", return_value=(8, 0)):
                check()
            """
        ),
        Example('print("torch.cuda is not there")', reported=False),
    ],
)  # fmt: skip
PRIVATE = FAMILY.rule(
    "TR105", Kind.NOT_CONVERTIBLE, "torch._C._cuda_*, torch.cuda._*: private names",
    why="""Private names of torch's CUDA part change from version to version and have no counterpart elsewhere. Use the
    public name, or keep the call behind a condition on CUDA.""",
    source="torch's source",
    examples=[
        Example("import torch\n\nprint(torch._C._cuda_getDeviceCount())\n"),
        Example('import torch\n\nrun = torch._C._jit_get_operation("aten::cudnn_convolution_transpose")\n'),
    ],
)  # fmt: skip

UNBOUND = FAMILY.rule(
    "TR102c", Kind.REVIEW, "torch.cuda in a file that does not import torch: all of the file is left as it is",
    why="""A file that another one runs inside itself (`%run -i`, `exec`) has torch from there. Nothing in it says that
    the name is torch, so neither its questions about CUDA nor what is behind them is converted. Add `import torch`, and
    port it again.""",
    source="seen in public code; Python's rules for names", once=True,
    examples=[
        Example(
            """
            device = "cuda" if torch.cuda.is_available() else "cpu"
            if torch.cuda.is_available():
                model = model.cuda()
            """
        ),
    ],
)  # fmt: skip


@FAMILY.attribute("cuda")
def _unbound(file: File, node: ast.Attribute) -> bool:
    if is_unbound_torch(file, node):
        file.report(UNBOUND, node)
    return False


@FAMILY.reference("torch._C.*")
def _private(file: File, node: ast.expr) -> bool:
    name = file.dotted(node) or ""
    if not name.startswith(("torch._C._cuda", "torch._C._Cuda")):
        return False
    file.report(PRIVATE, node)
    return True


@FAMILY.string("torch.cuda.*")
def _quoted(file: File, node: ast.Constant) -> bool:
    around = file.parent(node)
    alone = isinstance(around, ast.Expr | ast.JoinedStr)  # a docstring, a part of a longer text
    if not alone and all(part.isidentifier() for part in str(node.value).split(".")):
        file.report(QUOTED, node)
    return False


@FAMILY.string("aten::cudnn*", "aten::_cudnn*", "aten::_thnn_fused*")
def _operator(file: File, node: ast.Constant) -> bool:
    file.report(PRIVATE, node, "an operator of cuDNN by its name: only CUDA has it")
    return True


@FAMILY.reference("torch.cuda", "torch.cuda.*")
def _unknown(file: File, node: ast.expr) -> bool:
    name = (file.dotted(node) or "").rpartition(".")[2]
    if name.startswith("_"):
        lazy = "off CUDA it keeps the function for when CUDA is initialised, and never calls it"
        file.report(PRIVATE, node, f"torch.cuda.{name}: {lazy}" if name == "_lazy_call" else "")
    elif isinstance(node, ast.Attribute) or file.by_star(node):
        file.report(UNKNOWN, node)
    return True


@FAMILY.node(ast.ImportFrom)
def _import_from(file: File, node: ast.ImportFrom) -> bool:
    module = node.module or ""
    if node.level or module.partition(".")[0] != "torch":
        return False
    drop_ins = table().drop_ins
    known = [alias for alias in node.names if f"{module}.{alias.name}" in drop_ins]
    scripted = [alias for alias in known if _is_used_in_script(file, node, alias)]
    swapped = [alias for alias in known if alias not in scripted and _fits(file, node, alias)]
    for alias in known:
        if alias in scripted:
            rule, _ = drop_ins[f"{module}.{alias.name}"]
            file.report(rule, alias, held_back="what TorchScript compiles, or may, uses the name")
    gone = [alias for alias in node.names if _is_module(module, alias.name) and _only_converted(file, node, alias)]
    if swapped and len(swapped) == len(node.names):
        whole = _whole_swap(file, node)
        for alias in swapped:
            rule, _ = drop_ins[f"{module}.{alias.name}"]
            file.report(rule, alias, edits=(whole, *_renamed(file, module, alias)))
        return True
    if swapped or gone:
        _split(file, node, swapped, gone)
    for alias in node.names:
        if _is_module(module, alias.name) and alias not in gone:
            file.report(MODULE, alias, _kept(file, node, alias))
        elif module.startswith("torch.cuda") and alias not in known and alias not in gone:
            private = alias.name.startswith("_")
            file.report(PRIVATE if private else UNKNOWN, alias, "the import stays; see what is said where it is used")
    return True


def _fits(file: File, node: ast.ImportFrom, alias: ast.alias) -> bool:
    """Return whether the runtime's object can take the place of an imported name.

    A function cannot replace a class, and every call must be one that the runtime's function understands.
    """
    full = f"{node.module}.{alias.name}"
    calls = [(use, file.parent(use)) for use in _uses(file, node, alias)]
    called = [parent for use, parent in calls if isinstance(parent, ast.Call) and parent.func is use]
    if full in table().functions and len(called) < len(calls):
        return False
    return not any(refused(table().drop_ins[full][1], each) for each in called)


def _whole_swap(file: File, node: ast.ImportFrom) -> Edit:
    """The module of `from torch.cuda.amp import ...` becomes the runtime's: one edit, of all names together."""
    start, _ = file.source.span(node)
    begin = file.source.text.index(node.module or "", start)
    return Edit(begin, begin + len(node.module or ""), (file.runtime,))


def _renamed(file: File, module: str, alias: ast.alias) -> tuple[Edit, ...]:
    """`import device` becomes `import device_index as device` where the runtime has another name for it."""
    _, name = table().drop_ins[f"{module}.{alias.name}"]
    if name == alias.name:
        return ()
    start, _ = file.source.span(alias)
    kept = "" if alias.asname else f" as {alias.name}"
    return (Edit(start, start + len(alias.name), (name + kept,)),)


def _split(file: File, node: ast.ImportFrom, swapped: list[ast.alias], gone: list[ast.alias]) -> None:
    """Take names out of an import, and import those that the runtime has from there, in a statement of their own."""
    rest = [alias for alias in node.names if alias not in swapped and alias not in gone]
    parts = [f"from {node.module} import {', '.join(map(ast.unparse, rest))}"] if rest else []
    if swapped:
        names = []
        for alias in swapped:
            _, name = table().drop_ins[f"{node.module}.{alias.name}"]
            bound = alias.asname or alias.name
            names.append(name if name == bound else f"{name} as {bound}")
        parts.append(f"from {file.runtime} import {', '.join(names)}")
    if parts:
        start, _ = file.source.span(node)
        line = file.source.text[file.source.starts[node.lineno - 1] : start]
        between = file.source.newline + line if not line.strip() else "; "
        edit = file.replace(node, between.join(parts))
    else:
        found = _without_statement(file, node)
        if found is None:
            for alias in gone:
                file.report(MODULE, alias, "the import stays: nothing else is in its block")
            return
        edit = found
    for alias in (*swapped, *gone):
        rule = table().drop_ins[f"{node.module}.{alias.name}"][0] if alias in swapped else MODULE
        file.report(rule, alias, edits=edit)


def _without_statement(file: File, node: ast.stmt) -> Edit | None:
    """Take the line of a statement away; None where it shares the line or is alone in its block."""
    source = file.source
    start, end = source.span(node)
    line = source.starts[node.lineno - 1]
    last = node.end_lineno or node.lineno
    after = source.starts[last] if last < len(source.starts) else len(source.text)
    if source.text[line:start].strip() or source.text[end:after].strip():
        return None
    parent = file.walk.parents[node]
    blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
    if not any(isinstance(block, list) and node in block and len(block) > 1 for block in blocks):
        return None
    return Edit(line, after, ())


@FAMILY.node(ast.Import)
def _import(file: File, node: ast.Import) -> bool:
    for alias in node.names:
        if alias.name != "torch.cuda" and not alias.name.startswith("torch.cuda."):
            continue
        if alias.asname is None and not any(file.dotted(each) == "torch.cuda" for each in file.walk.scopes):
            continue  # nothing in the file uses it, and it can be imported everywhere
        if alias.asname is None:
            start, _ = file.source.span(alias)
            gone = _without_statement(file, node) if len(node.names) == 1 and _has_torch(file, node) else None
            edit = gone or Edit(start, start + len(alias.name), ("torch",))
            file.report(MODULE, alias, edits=edit)
        elif len(node.names) == 1 and _only_converted(file, node, alias):
            gone = _without_statement(file, node)
            held = "" if gone else "nothing else is in its block"
            file.report(MODULE, alias, edits=gone or (), held_back=held)
        else:
            file.report(MODULE, alias, _kept(file, node, alias))
    return False


def _has_torch(file: File, node: ast.Import) -> bool:
    """Return whether the block has another `import torch`, with nothing but imports between the two."""
    block = getattr(file.walk.parents[node], "body", [])
    others = [
        number for number, each in enumerate(block)
        if isinstance(each, ast.Import) and any(alias.name == "torch" and alias.asname is None for alias in each.names)
    ]  # fmt: skip
    if node not in block or not others:
        return False
    first, last = sorted((block.index(node), others[0]))
    return all(isinstance(each, ast.Import | ast.ImportFrom) for each in block[first:last])


def _is_module(module: str, name: str) -> bool:
    """Return whether an imported name is torch.cuda or one of its modules."""
    full = f"{module}.{name}"
    return full in ("torch.cuda", "torch.cuda.amp", "torch.cuda.memory", "torch.cuda.nvtx", "torch.cuda.random")


def _kept(file: File, node: ast.stmt, alias: ast.alias) -> str:
    return "the import stays" + ("" if _uses(file, node, alias) else ": another file may take it from here")


def _uses(file: File, node: ast.stmt, alias: ast.alias) -> list[ast.Name]:
    """Return where the name that an import binds is used in the file."""
    return file.reads(alias.asname or alias.name, node)


def _is_used_in_script(file: File, node: ast.stmt, alias: ast.alias) -> bool:
    """Return whether code that TorchScript compiles uses the name that an import binds."""
    return any(file.is_scripted(use) for use in _uses(file, node, alias))


def _only_converted(file: File, node: ast.stmt, alias: ast.alias) -> bool:
    """Return whether the name is used, and every use is of a name that is rewritten with all that is before it."""
    uses = _uses(file, node, alias)
    exported = f'"{alias.asname or alias.name}"' in file.source.text and "__all__" in file.walk.names
    return bool(uses) and not exported and all(_converted(file, use) for use in uses)


def _converted(file: File, name: ast.Name) -> bool:
    node: ast.AST | None = name
    if file.is_scripted(name):
        return False
    while isinstance(node, ast.Name | ast.Attribute):
        if file.dotted(node) in table().drop_ins:
            return isinstance(node, ast.Attribute)
        node = file.parent(node)
    return False
