"""Facts about tensors, read from the text of a program: that a value is a tensor, its dtype, that it is on the host.

Nothing is guessed: a fact is known where the expression itself, or the only assignment of its name, says it.

Called by rules that depend on dtypes or places (`attention`, `operators`, `loading`, `collectives`, `backends`).
Tests: tests/port/test_port_operators.py, tests/port/test_port_needless.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from toprope.port.file import File
from toprope.port.syntax.nodes import name_of, nodes_of

__all__ = ["all_on_host", "dtype_of", "is_float64_array", "is_tensor", "is_unpacked", "on_host"]

_CASTS = {
    "double": "float64", "float": "float32", "half": "float16", "bfloat16": "bfloat16", "long": "int64", "int": "int32",
    "short": "int16", "char": "int8", "byte": "uint8", "cfloat": "complex64", "cdouble": "complex128",
}  # fmt: skip
_TYPES = {
    "DoubleTensor": "float64", "FloatTensor": "float32", "HalfTensor": "float16", "BFloat16Tensor": "bfloat16",
    "LongTensor": "int64", "IntTensor": "int32", "BoolTensor": "bool", "ByteTensor": "uint8",
}  # fmt: skip
_NAMES = {"double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32"}
_DTYPES = {*_CASTS.values(), *_TYPES.values(), "complex64", "complex128"}
_FACTORIES = {
    f"torch.{name}"
    for name in (
        "arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn",
        "randperm", "range", "tensor", "zeros",
    )
}  # fmt: skip
_KEEP_DTYPE = {
    "abs", "clone", "contiguous", "cpu", "cuda", "detach", "expand", "expand_as", "flatten", "flip", "permute",
    "repeat", "reshape", "roll", "squeeze", "t", "transpose", "unsqueeze", "view", "to",
}  # fmt: skip
_NO_TENSOR = {"size", "stride", "item", "tolist", "numpy", "dim", "numel", "shape", "data_ptr", "type", "nelement"}
_DEPTH = 6


def dtype_of(file: File, node: ast.expr, depth: int = _DEPTH) -> str | None:
    """Return the dtype of a tensor, such as "float64"; None where the text does not say it."""
    if depth == 0:
        return None
    if isinstance(node, ast.Name):
        value = _only_value(file, node)
        return None if value is None else dtype_of(file, value, depth - 1)
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
        left, right = dtype_of(file, node.left, depth - 1), dtype_of(file, node.right, depth - 1)
        if left == right:
            return left
        known, other = (left, node.right) if left is not None else (right, node.left)
        floating = known is not None and known.startswith(("float", "bfloat", "complex"))
        return known if floating and _is_number(other) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return dtype_of(file, node.operand, depth - 1)
    return _of_call(file, node, depth) if isinstance(node, ast.Call) else None


def _of_call(file: File, node: ast.Call, depth: int) -> str | None:
    name = file.dotted(node.func) or ""
    if name in _FACTORIES:
        given = file.keyword(node, "dtype")
        takes_arrays = name in ("torch.tensor", "torch.as_tensor") and given is None and bool(node.args)
        if takes_arrays and is_float64_array(file, node.args[0]):
            return "float64"
        return _named(file, given.value) if given is not None else None
    if name == "torch.from_numpy":
        return "float64" if node.args and is_float64_array(file, node.args[0]) else None
    if name.startswith("torch."):
        return _TYPES.get(name.removeprefix("torch."))
    if not isinstance(node.func, ast.Attribute) or name:
        return None
    method = node.func.attr
    if method in _CASTS and not node.args:
        return _CASTS[method]
    if method in ("to", "type"):
        said = [*node.args, *(each.value for each in node.keywords if each.arg in ("dtype", "device"))]
        found = [dtype for each in said if (dtype := _named(file, each))]
        if found:
            return found[0]
        only_device = method == "to" and bool(said) and all(_is_device(file, each) for each in said)
        return dtype_of(file, node.func.value, depth - 1) if only_device else None
    return dtype_of(file, node.func.value, depth - 1) if method in _KEEP_DTYPE - {"to"} else None


_ARRAYS = {
    "zeros": 1, "ones": 1, "empty": 1, "full": 2, "eye": 3, "identity": 1, "linspace": 5, "array": 1, "asarray": 1,
}  # fmt: skip
"""Functions of NumPy that make an array, with the position of their dtype."""
_KEEP_ARRAY = {"reshape", "copy", "transpose", "flatten", "ravel", "squeeze", "cumsum"}


def is_float64_array(file: File, node: ast.expr, depth: int = _DEPTH) -> bool:
    """Return whether the text says that a value is an array of NumPy of float64, which is what it makes of floats."""
    if depth == 0:
        return False
    if isinstance(node, ast.Name):
        value = _only_value(file, node)
        return value is not None and is_float64_array(file, value, depth - 1)
    if not isinstance(node, ast.Call):
        return False
    name = (file.dotted(node.func) or "").removeprefix("numpy.")
    if name in _ARRAYS and file.dotted(node.func) != name:
        at = _ARRAYS[name]
        given = file.keyword(node, "dtype")
        dtype = given.value if given is not None else node.args[at] if len(node.args) > at else None
        if dtype is not None:
            return _is_float64(file, dtype)
        parts = {"full": node.args[1:2], "array": node.args[:1], "asarray": node.args[:1]}.get(name)
        values = [each.value for part in parts or () for each in nodes_of(part) if isinstance(each, ast.Constant)]
        return parts is None or any(isinstance(each, float) for each in values)
    if not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "astype" and node.args:
        return _is_float64(file, node.args[0])
    return node.func.attr in _KEEP_ARRAY and is_float64_array(file, node.func.value, depth - 1)


def _is_float64(file: File, node: ast.expr) -> bool:
    is_text = isinstance(node, ast.Constant) and node.value in ("float64", "double", "f8")
    return is_text or file.dotted(node) in ("numpy.float64", "numpy.double") or file.is_builtin(node, "float")


def _is_device(file: File, node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bool)
    name = name_of(node)
    called = file.dotted(node.func) if isinstance(node, ast.Call) else None
    return called == "torch.device" or name.lower().endswith("device")


def _named(file: File, node: ast.expr) -> str | None:
    """The dtype that an expression names: `torch.float64`, `torch.double`."""
    name = file.dotted(node) or ""
    if not name.startswith("torch."):
        return None
    short = name.removeprefix("torch.")
    short = _NAMES.get(short, short)
    return short if short in _DTYPES else None


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def is_tensor(file: File, node: ast.expr, depth: int = _DEPTH) -> bool:
    """Return True if the text says that a value is a tensor."""
    if depth == 0:
        return False
    if dtype_of(file, node, depth) is not None:
        return True
    if isinstance(node, ast.Name):
        bindings = file.bindings(node)
        if any(isinstance(each.node, ast.arg) and _annotated(file, each.node) for each in bindings):
            return True
        values = [each.value for each in bindings]
        return bool(values) and all(value is not None and is_tensor(file, value, depth - 1) for value in values)
    if isinstance(node, ast.BinOp):
        return is_tensor(file, node.left, depth - 1) or is_tensor(file, node.right, depth - 1)
    if isinstance(node, ast.UnaryOp | ast.Starred):
        inner = node.operand if isinstance(node, ast.UnaryOp) else node.value
        return is_tensor(file, inner, depth - 1)
    if isinstance(node, ast.Subscript):
        return is_tensor(file, node.value, depth - 1)
    if isinstance(node, ast.Call):
        return _gives_tensor(file, node, depth)
    return (
        isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "data") and is_tensor(file, node.value, depth - 1)
    )


def _gives_tensor(file: File, node: ast.Call, depth: int) -> bool:
    name = file.dotted(node.func) or ""
    if name in _FACTORIES or name in ("torch.from_numpy", "torch.Tensor", "torch.zeros_like", "torch.ones_like"):
        return True
    if name.startswith(("torch.nn.functional.", "torch.linalg.", "torch.fft.", "torch.special.")):
        return True
    if name in ("torch.cat", "torch.stack", "torch.matmul", "torch.mm", "torch.bmm", "torch.einsum", "torch.exp"):
        return True
    method = node.func.attr if isinstance(node.func, ast.Attribute) and not name else ""
    if method and method not in _NO_TENSOR and isinstance(node.func, ast.Attribute):
        return is_tensor(file, node.func.value, depth - 1)
    return False


def _annotated(file: File, argument: ast.arg) -> bool:
    return argument.annotation is not None and file.dotted(argument.annotation) == "torch.Tensor"


def on_host(file: File, node: ast.expr, depth: int = _DEPTH) -> bool:
    """Return True if the text says that a tensor is in the host's memory: `.cpu()`, `torch.from_numpy(x)`, ..."""
    if depth == 0:
        return False
    if isinstance(node, ast.Name):
        value = _only_value(file, node)
        return value is not None and on_host(file, value, depth - 1)
    if isinstance(node, ast.BinOp):
        sides = [each for each in (node.left, node.right) if not _is_number(each)]
        return bool(sides) and all(on_host(file, each, depth - 1) for each in sides)
    if isinstance(node, ast.Subscript):
        return on_host(file, node.value, depth - 1)
    if not isinstance(node, ast.Call):
        return False
    name = file.dotted(node.func) or ""
    if name == "torch.from_numpy":
        return True
    if name in _FACTORIES:
        given = file.keyword(node, "device")
        return given is None or _is_cpu(given.value)
    if not isinstance(node.func, ast.Attribute) or name:
        return False
    if node.func.attr == "cpu":
        return True
    if node.func.attr in ("cuda", "npu"):
        return False
    if node.func.attr == "to":
        said = [*node.args, *(each.value for each in node.keywords)]
        if any(_is_cpu(each) for each in said):
            return True
        if any(_named(file, each) is None and not isinstance(each, ast.Constant) for each in said):
            return False  # perhaps a device
        if any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in said):
            return False
    return on_host(file, node.func.value, depth - 1)


def all_on_host(file: File, node: ast.expr) -> bool:
    """Return True if the text says that a tensor, or each of a list, a tuple or a dictionary, is in host memory."""
    value = _only_value(file, node) if isinstance(node, ast.Name) else None
    if isinstance(value, ast.List | ast.Dict) and isinstance(node, ast.Name) and _is_filled(file, node):
        return False
    node = value or node
    if isinstance(node, ast.List | ast.Tuple | ast.Dict):
        parts = node.values if isinstance(node, ast.Dict) else node.elts
        return bool(parts) and all(all_on_host(file, each) for each in parts)
    return on_host(file, node) and "set_default_" not in file.source.text


def _is_filled(file: File, node: ast.Name) -> bool:
    """Return whether more is put into a list or a dictionary than it is made with."""
    for each in file.reads(node.id, *(binding.node for binding in file.bindings(node))):
        around = file.parent(each)
        if isinstance(around, ast.Subscript) and isinstance(around.ctx, ast.Store):
            return True
        if isinstance(around, ast.Attribute) and around.attr in ("append", "extend", "insert", "setdefault", "update"):
            return True
    return False


def _is_cpu(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    return isinstance(node, ast.Constant) and node.value == "cpu"


def _only_value(file: File, node: ast.Name) -> ast.expr | None:
    """The value of a name that is assigned once, above."""
    values = list(_values(file, node))
    return values[0] if len(values) == 1 else None


def _values(file: File, node: ast.Name) -> Iterator[ast.expr | None]:
    for binding in file.bindings(node):
        above = isinstance(binding.node, ast.stmt) and binding.node.lineno < node.lineno
        yield binding.value if above else None


def is_unpacked(file: File, name: str, function: ast.AST) -> bool:
    """Return whether another function of the file takes a value of this name from a tuple, and reads it.

    `y, attn = self.attn(x)` and `return attn`, next to a function with `return x, attn`.
    """
    inside = set(nodes_of(function))
    names = (each for each in file.walk.scopes if isinstance(each, ast.Name) and each.id == name)
    others = [each for each in names if each not in inside]
    taken = {
        file.scope(each) for each in others
        if isinstance(each.ctx, ast.Store) and isinstance(file.parent(each), ast.Tuple)
        and isinstance(getattr(file.statement(each), "value", None), ast.Call)
    }  # fmt: skip
    return any(isinstance(each.ctx, ast.Load) and file.scope(each) in taken for each in others)
