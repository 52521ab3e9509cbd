"""Uses of what only CUDA has: packages and extensions for CUDA, Triton kernels, operators registered with torch.

A name that a tried import leaves at None elsewhere fails where it is called, so a condition on CUDA in front of such a
use stays. Behind a question whether the package is there (`flash_attn is not None`, `HAS_FLASH`) a use does no harm.

Called by `guards` and two rules; tests/port/test_port_packages.py, tests/port/test_port_unseen_fourth.py. A package
for CUDA that is not known here is in `rules.kernels`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator

from toprope.port.file import File
from toprope.port.syntax.nodes import nodes_of
from toprope.port.syntax.scopes import Binding

__all__ = ["asks_for_package", "compiled_uses", "functions_of_kernels", "why_asked_as_it_is"]

_IMPORTS = {
    "TR077", "TR077a", "TR077b", "TR079", "TR079a", "TR080", "TR081", "TR082", "TR083", "TR084", "TR084a", "TR097",
    "TR121",
}  # fmt: skip
"""Rules about an import of what is for CUDA alone. Where it is rewritten, its names are there on each device."""
_OPERATORS_OF_TORCH = {
    "aten", "prim", "prims", "profiler", "quantized", "image", "torchvision", "torchaudio", "c10d",
    "_c10d_functional", "c10d_functional", "inductor", "higher_order", "mkldnn", "onednn", "sparse", "debugprims",
}  # fmt: skip
_LOADS = ("torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline")
_KERNELS = {"triton.jit", "triton.runtime.jit", "numba.cuda.jit"}
_FLAG = re.compile(r"(?:has|have)_\w+|\w+_(?:available|installed|imported|found)", re.IGNORECASE)
_SWITCH = r"(?:use|using|with|has|no|on|to|is|enable|want|support|if)_cuda"
_KERNEL_TEXTS = re.compile(
    r"custom_op|plugin|triton|cutlass|cudnn|kernel\w*\s*\[|_kernel\w*\(|(?<!distributed_)data_parallel|(?<!Distributed)DataParallel"
    rf"|\b(?!{_SWITCH}\b)\w+_cuda\b|\.\w+_cuda_(?!available|device|enabled)\w+\s*\("
)
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_Import = ast.Import | ast.ImportFrom


def compiled_uses(file: File) -> Iterator[ast.expr]:
    """Find where the file uses what only CUDA has.

    That is a name of an import that the rules report (flash_attn, apex, a compiled module), of a module of the project
    that builds an extension, a Triton kernel, an operator that is not torch's own, or a function of the file that calls
    one of these whatever it is given.
    """
    yield from _uses_in(file, file.walk.module.node)


def functions_of_kernels(file: File) -> Iterator[tuple[ast.AST, str, int]]:
    """Find the methods of autograd's functions that call an extension whatever they are given, with its name and line.

    What they make is for the kernel, which takes tensors of CUDA alone.
    """
    classes = [
        each for each in file.walk.parents
        if isinstance(each, ast.ClassDef) and any(file.dotted(base) == _AUTOGRAD for base in each.bases)
    ]  # fmt: skip
    names = _Names(file) if classes else None
    for method in (each for one in classes for each in one.body if isinstance(each, _FUNCTION)):
        for call in names.calls_of_extensions(method) if names is not None else ():
            yield method, file.text(call.func), call.lineno
            break


_AUTOGRAD = "torch.autograd.Function"


def _uses_in(file: File, part: ast.AST) -> Iterator[ast.expr]:
    """The same for a part of the file."""
    names = _Names(file)
    for node in nodes_of(part):
        if isinstance(node, ast.expr) and names.is_use(node):
            yield node


class _Names:
    """The names of a file that only CUDA has."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._imports = {node for node, converted in _imports(file) if not converted}
        self._loaded = {node for finding, node in file.places if finding.rule.code == "TR121"} - self._imports
        functions = [each for each in nodes_of(file.walk.module.node) if isinstance(each, _FUNCTION)]
        self._own: set[ast.AST] = {each for each in functions if _is_kernel(file, each)}
        self._methods: set[str] = set()
        built = bool(self._loaded) or any(self._file.dotted(each) in _LOADS for each in file.walk.scopes)
        if not self._own and not self._imports and not built and not file.context.compiled and not file.context.kernels:
            return
        changed = True
        while changed:
            changed = False
            for each in functions:
                if each not in self._own and self._always_uses(each.body):
                    changed = True
                    self._add(each)

    def _add(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._own.add(function)
        around = self._file.parent(function)
        if isinstance(around, ast.ClassDef):
            self._methods.add(function.name)
            if function.name in ("__init__", "forward"):  # made, called, or applied as a function of autograd
                self._own.add(around)

    def is_use(self, node: ast.AST) -> bool:
        """Return whether an expression uses one of them."""
        match node:
            case ast.Name(ctx=ast.Load()):
                bindings = self._file.bindings(node)
                if not any(map(self._is_for_cuda, bindings)) or _is_asked(self._file, node):
                    return False
                built = any(map(self._is_built, bindings))  # where it is not installed: the import is of the same
                others = [each for each in bindings if not (built and each.imported is not None)]
                return all(self._is_for_cuda(each) or _is_nothing(each) for each in others)
            case ast.Attribute(value=ast.Attribute()):
                name = self._file.dotted(node) or ""
                library = name.removeprefix("torch.ops.").partition(".")[0]
                return name.startswith("torch.ops.") and name.count(".") == 3 and library not in _OPERATORS_OF_TORCH
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                return name in self._methods
            case ast.Call(func=ast.Subscript(value=ast.Name() as name, slice=grid)) if _is_grid(grid):
                bindings = self._file.bindings(name)  # a kernel of another module: fused[(1,)](x)
                return bool(bindings) and all(each.imported is not None for each in bindings)
        return False

    def _is_for_cuda(self, binding: Binding) -> bool:
        node = binding.node
        return (
            self._is_built(binding)
            or node in self._own
            or _is_bound_by(binding, self._imports)
            or _is_compiled(self._file, binding.imported)
        )

    def _is_built(self, binding: Binding) -> bool:
        """Return whether a name gets an extension that is built, or imported by a call, when the file runs."""
        value = binding.value
        return isinstance(value, ast.Call) and (value in self._loaded or self._file.dotted(value.func) in _LOADS)

    def calls_of_extensions(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
        """The calls of extensions and compiled modules that a function makes under no condition."""
        for statement in function.body:
            if isinstance(statement, ast.If) and any(isinstance(each, ast.Return) for each in nodes_of(statement)):
                return
            is_plain = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return)
            for each in _unconditional(statement) if is_plain else ():
                name = each.func if isinstance(each, ast.Call) else None
                while isinstance(name, ast.Attribute):
                    name = name.value
                if isinstance(name, ast.Name) and any(map(self._is_extension, self._file.bindings(name))):
                    yield each  # type: ignore[misc]

    def _is_extension(self, binding: Binding) -> bool:
        """Return whether a name gets an extension: one that the file builds, or a compiled module."""
        imports = {node for finding, node in self._file.places if finding.rule.code == "TR121"}
        return self._is_built(binding) or _is_bound_by(binding, imports & self._imports)

    def _always_uses(self, body: Iterable[ast.stmt]) -> bool:
        """Return whether a block calls what only CUDA has, under no condition of its own."""
        for statement in body:
            if isinstance(statement, ast.If) and any(isinstance(each, ast.Return) for each in nodes_of(statement)):
                return False  # it may have gone another way
            inner = getattr(statement, "body", None)
            if isinstance(statement, ast.With | ast.AsyncWith | ast.For) and inner and self._always_uses(inner):
                return True
            is_plain = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return)
            parts = _unconditional(statement) if is_plain else ()
            if any(isinstance(each, ast.Call) and self._calls(each) for each in parts):
                return True
        return False

    def _calls(self, call: ast.Call) -> bool:
        node: ast.expr = call.func
        while isinstance(node, ast.Subscript | ast.Attribute) and not self.is_use(node):
            node = node.value
        return self.is_use(node) or self.is_use(call)


def asks_for_package(file: File, test: ast.expr) -> bool:
    """Return whether a condition holds only where a package for CUDA can be imported."""
    match test:
        case ast.Compare(
            left=ast.Name() as name, ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant(value=None)]
        ):
            return _is_of_package(file, name)
        case ast.Call(func=function, args=[inner]) if file.is_builtin(function, "bool"):
            return asks_for_package(file, inner)
        case ast.Call(func=ast.Name() | ast.Attribute() as function):
            return _says_there(file, function)
        case ast.Name():
            return _is_of_package(file, test) or _is_flag(file, test) or _says_there(file, test)
        case ast.Attribute():
            return _says_there(file, test)
    return False


def _imports(file: File) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The imports of what is for CUDA alone, and whether each is rewritten."""
    for finding, node in file.places:
        if finding.rule.code in _IMPORTS and isinstance(node, _Import):
            yield node, finding.converted


def _is_bound_by(binding: Binding, imports: Iterable[ast.AST]) -> bool:
    """Return whether an import of what is for CUDA alone binds a name; `import os, apex` binds another one too."""
    if binding.node not in imports:
        return False
    top = (binding.imported or "").partition(".")[0]
    return isinstance(binding.node, ast.ImportFrom) or top not in {*sys.stdlib_module_names, "torch", "numpy"}


def _is_of_package(file: File, name: ast.Name) -> bool:
    imports = {node for node, _ in _imports(file)}
    return any(_is_bound_by(each, imports) for each in file.bindings(name))


def _is_flag(file: File, name: ast.Name) -> bool:
    """Return whether a name is true only behind an import that worked, or holds the answer of `find_spec`."""
    values = [each for each in file.bindings(name) if not _is_nothing(each)]
    tries = [each for node, _ in _imports(file) for each in file.ancestors(node) if isinstance(each, ast.Try)]
    worked = [statement for block in tries for statement in (*block.body, *block.orelse)]
    asked = [node for finding, node in file.places if finding.rule.code == "TR084b"]
    return bool(values) and all(
        each.value is not None
        and (
            any(_within(file, each.node, statement) for statement in worked)
            or any(_within(file, node, each.value) for node in asked)
        )
        for each in values
    )


def _says_there(file: File, node: ast.Name | ast.Attribute) -> bool:
    """Return whether a name says that a package which the file imports is there: `is_apex_available`, `HAS_APEX`."""
    name = (node.id if isinstance(node, ast.Name) else node.attr).lower()
    if not _FLAG.fullmatch(name):
        return False
    modules = (getattr(each, "module", None) or each.names[0].name for each, _ in _imports(file))
    stems = {stem for each in modules for stem in (each.partition(".")[0], each.partition(".")[0].partition("_")[0])}
    return any(stem.lower() in name for stem in stems if len(stem) > 2)


def _is_kernel(file: File, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    called = (each.func if isinstance(each, ast.Call) else each for each in function.decorator_list)
    return any(file.dotted(each) in _KERNELS for each in called)


def _is_grid(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple | ast.Lambda) or (isinstance(node, ast.Name) and "grid" in node.id.lower())


def _is_nothing(binding: Binding) -> bool:
    """Return whether a name gets what says "it is not there": None, False, a function that only raises."""
    if isinstance(binding.node, _FUNCTION):
        return isinstance(binding.node.body[-1], ast.Raise)
    return isinstance(binding.value, ast.Constant) and not binding.value.value


def _is_asked(file: File, node: ast.expr) -> bool:
    """Return whether it is only asked whether a name is there: `flash_attn is not None`, `if flash_attn`."""
    around = file.parent(node)
    if isinstance(around, ast.Compare):
        return all(isinstance(each, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) for each in around.ops)
    return file.decides(node) or (isinstance(around, ast.Call) and file.is_builtin(around.func, "bool"))


def _unconditional(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that are evaluated whenever it runs."""
    yield node
    if isinstance(node, ast.IfExp | ast.BoolOp | ast.Lambda):
        return
    for each in ast.iter_child_nodes(node):
        yield from _unconditional(each)


def _within(file: File, node: ast.AST, part: ast.AST) -> bool:
    return node is part or any(each is part for each in file.ancestors(node))


def _is_compiled(file: File, imported: str | None) -> bool:
    names = (imported or "").split(".")
    if names[0] == "torch":
        return False
    return names[-1] in file.context.compiled or ".".join(names[-2:]) in file.context.kernels


def _of_kernels(binding: Binding) -> bool:
    return (binding.imported or "").partition(".")[0] in ("triton", "cutlass", "cupy", "tilelang", "numba")


_OF_A_KERNEL = "the function calls kernels for CUDA, or DataParallel: the question stays what it is"
_THIRD_WAY = "the code has a way of its own for other devices: the question stays what it is"


def why_asked_as_it_is(file: File, question: ast.expr, device: ast.expr) -> str:
    """Return why a question about a device stays; "" where it does not.

    There is a kernel for CUDA behind it, or a way for devices that are neither CUDA's nor the CPU. What is true for one
    question is true for all in its function that ask about the same device: the answers belong together.

    Args:
        file: the file.
        question: `x.device.type == "cuda"`, `x.is_cuda`, `str(device).startswith("cuda")`.
        device: what it asks about, `x.device`, `x` or `device`.
    """
    text = ast.unparse(device)
    forms = {f"{text}{end}" for end in ("", ".type", ".device", ".device.type", ".is_cuda")}
    forms |= {f"str({form})" for form in forms}
    if text.endswith(".device"):
        forms.add(f"{text.removesuffix('.device')}.is_cuda")
    function = file.function(question)
    asked: list[ast.AST] = [question]
    for each in nodes_of(function) if function is not None else ():
        sides = [each.left, *each.comparators] if isinstance(each, ast.Compare) else [each]
        if isinstance(each, ast.Compare) or (isinstance(each, ast.Attribute) and each.attr == "is_cuda"):
            asked += [each] if any(ast.unparse(side) in forms for side in sides) else []
    if any(_guards_a_kernel(file, each, replicas=each is question) for each in asked):
        return _OF_A_KERNEL
    return _THIRD_WAY if any(_has_third_way(file, each) for each in asked) else ""


_CPU = re.compile(r"""['"]cpu['"]|\.is_cpu\b""")


def _has_third_way(file: File, question: ast.AST) -> bool:
    """Return whether a question is one of CUDA, the CPU and an else that works: `if cuda: elif cpu: else:`."""
    statement = file.statement(question) if isinstance(question, ast.expr) else question
    if not isinstance(statement, ast.If) or question not in nodes_of(statement.test):
        return False
    around, last = file.parent(statement), statement.orelse
    match last:
        case [ast.If(test=test, orelse=last)]:
            is_after = bool(_CPU.search(ast.unparse(test)))
        case _:
            is_after = isinstance(around, ast.If) and around.orelse == [statement]
            is_after = is_after and bool(_CPU.search(ast.unparse(around.test)))  # type: ignore[union-attr]
    return is_after and bool(last) and not isinstance(last[-1], ast.Raise)


def _guards_a_kernel(file: File, node: ast.AST, *, replicas: bool) -> bool:
    """Return whether the code that a question guards calls kernels for CUDA, or torch's DataParallel.

    Such a question asks for CUDA itself. A condition guards its block, an assertion the function around it.

    Args:
        file: the file.
        node: the question.
        replicas: whether DataParallel counts.
    """
    function = file.function(node)
    around: ast.AST = file.statement(node)
    if isinstance(around, ast.Assert):
        if any(_of_kernels(each) for bindings in file.walk.module.bindings.values() for each in bindings):
            return True
        around = function or around
        if function is not None and any(_uses_in(file, function)):
            return True
    told = [file.text(around)]
    if isinstance(around, ast.If):
        told = [file.text(each) for each in (around.test, *around.body)]
    if function is not None:
        told.append(function.name)
    text = "\n".join(line.partition("#")[0] for part in told for line in part.splitlines()).replace("is_cuda", "")
    text = text if replicas else re.sub(r"DataParallel|data_parallel", "", text)
    return bool(_KERNEL_TEXTS.search(text))
