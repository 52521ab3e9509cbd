"""Expressions that mean "a CUDA device" (texts, numbers, choices), and whether they are used as a device.

Called by most rules about devices. A wrong yes here changes code that is no device: tests/port/test_port_compared.py,
tests/port/test_port_receivers.py, tests/port/test_port_unseen.py
and test_port_receivers.py.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import Enum, auto
from string import Formatter

from toprope.port.file import File
from toprope.port.project.facts import is_options, option_of
from toprope.port.syntax.nodes import name_of, nodes_of

__all__ = [
    "FACTORIES", "TAKES_KIND", "TWO_KINDS", "Said", "Use", "before_number", "begins_device", "cannot_be", "device_name",
    "function_for", "index_name", "index_name_of", "is_argument", "is_asked_about", "is_card", "is_constant_cuda",
    "is_index",
    "is_listed", "is_storage", "is_template", "is_text", "names_default", "names_kind", "resolver_for", "said",
    "texts_of", "use", "why_unknown",
]  # fmt: skip

_TEXT = re.compile(r"cuda(?::(\d+))?")
_TEMPLATE = re.compile(r"cuda:(?:[{%]\S*)?")
_PERCENT = ("cuda:%d", "cuda:%i", "cuda:%s")
_DEVICE_NAME = re.compile(r"(?:^|_)(?:device|devices|dev|map_location|torch_device)(?:$|_|\d)", re.IGNORECASE)
_NO_DEVICE = re.compile(r"name|count|num|map$", re.IGNORECASE)
_KIND_NAME = re.compile(r"(?:^|_)(?:device|dev|accelerator)_?(?:type|kind)s?$|^device_types?_", re.IGNORECASE)
_INDEX_NAME = re.compile(r"(?:local_?rank|rank|gpu|gpu_?(?:id|index|idx|num)|device_?(?:id|index|idx))", re.IGNORECASE)

# Calls whose argument of this position is the type of a device, its name, or a device.
FACTORIES = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "to_empty")
"""Methods of tensors and modules that take a device."""
TAKES_KIND = {
    "torch.autocast": 0, "torch.amp.autocast": 0, "torch.amp.autocast_mode.autocast": 0, "torch.amp.GradScaler": 0,
    "torch.GradScaler": 0, "torch.get_autocast_dtype": 0, "torch.is_autocast_enabled": 0,
    "torch.set_autocast_dtype": 0, "torch.set_autocast_enabled": 0, "torch.distributed.init_device_mesh": 0,
    "torch.distributed.device_mesh.init_device_mesh": 0, "torch.get_device_module": 0,
}  # fmt: skip
"""Functions that take the type of a device, which has no number, at this position."""
_KNOWS_CUDA = {"torchsummary.summary"}
"""Functions of other packages that know "cuda" and "cpu" alone."""
_TAKES_NAME = {"torch.device": 0, "torch.Event": 0}
_TAKES_DEVICE = {"torch.load": 1, "torch.Generator": 0, "torch.set_default_device": 0, "torch.Stream": 0}


@dataclass(frozen=True)
class Said:
    """A device that an expression names.

    Attributes:
        index: the number of the device, as text or as the node that stays; None for "the current one".
        chosen: whether the expression itself asks whether there is CUDA, and says "cpu" where there is none.
        is_device: whether it is a torch.device already, not a text.
    """

    index: str | ast.expr | None = None
    chosen: bool = False
    is_device: bool = False

    def pieces(self, function: str) -> tuple[str | ast.AST, ...]:
        """A call of a function with the number, as pieces of an edit."""
        return (f"{function}()",) if self.index is None else (f"{function}(", self.index, ")")


class Use(Enum):
    """How an expression is used."""

    DEVICE = auto()
    """Return where torch takes a device or a text."""
    TEXT = auto()
    """As a device, where it must stay a text: the program or another library may look at it."""
    KIND = auto()
    """As the type of a device, which has no number: torch.autocast refuses "cuda:1"."""
    UNKNOWN = auto()
    """As something that is not known to be a device."""


def said(file: File, node: ast.expr) -> Said | None:
    """Find the device that an expression names: "cuda", "cuda:1", f"cuda:{i}", "cuda:%d" % i, ... None for others."""
    match node:
        case ast.Constant(value=str(text)) if found := _TEXT.fullmatch(text):
            return Said(found[1])
        case ast.JoinedStr(values=[ast.Constant(value=str(text))]) if found := _TEXT.fullmatch(text):  # f"cuda"
            return Said(found[1])
        case ast.JoinedStr(values=[ast.Constant(value="cuda:"), ast.FormattedValue() as part]) if _is_plain(part):
            return Said(_kept(file, part.value))
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod(), right=right) if text in _PERCENT:
            if isinstance(right, ast.Tuple):
                return Said(right.elts[0]) if len(right.elts) == 1 else None
            return Said(right)
        case ast.BinOp(left=ast.Constant(value="cuda"), op=ast.Add(), right=ast.Constant(value=str(text))):
            found = _TEXT.fullmatch("cuda" + text)
            return Said(found[1]) if found else None
        case ast.BinOp(left=ast.Constant(value="cuda:"), op=ast.Add(), right=right):
            if isinstance(right, ast.Call) and file.is_builtin(right.func, "str") and len(right.args) == 1:
                return Said(right.args[0])
            return Said(right)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            argument = _formatted(text, node)
            return None if argument is None else Said(argument)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                test, body, orelse = test.operand, orelse, body
            made = _made(file, body), _made(file, orelse)
            if not _asks(file, test) or None in made:
                return None
            (is_device, body), (is_other, orelse) = made  # type: ignore[misc]
            if is_device is not is_other or not (isinstance(orelse, ast.Constant) and orelse.value == "cpu"):
                return None
            named = said(file, body)
            if named is not None and isinstance(named.index, ast.AST) and _may_raise(named.index):
                return None  # it is computed on CUDA alone
            return None if named is None or named.chosen else Said(named.index, chosen=True, is_device=is_device)
    return None


def _may_raise(number: ast.AST) -> bool:
    """Return whether a number is computed in a way that can fail where there is no CUDA: `ranks[0]`, `get_rank()`."""
    return any(isinstance(each, ast.Call | ast.Subscript | ast.Await) for each in nodes_of(number))


def is_constant_cuda(call: ast.Call) -> bool:
    """Return whether the arguments of `torch.device` are constants that name CUDA: `torch.device("cuda", 1)`."""
    given = [*call.args, *(each.value for each in call.keywords)]
    texts = [str(each.value) for each in given if isinstance(each, ast.Constant)]
    return len(texts) == len(given) > 0 and texts[0].partition(":")[0] == "cuda"


def is_template(file: File, node: ast.expr) -> bool:
    """Return whether a text is the beginning of a device's name that something completes: "cuda:%s", "cuda:{:02d}"."""
    around = file.parent(node)
    whole = not isinstance(around, ast.JoinedStr) or len(around.values) == 2
    return whole and isinstance(node, ast.Constant) and bool(_TEMPLATE.fullmatch(str(node.value)))


def _is_plain(part: ast.FormattedValue) -> bool:
    """Return whether what is in braces is written as a number or text is: `{i}`, `{i!s}`, `{i:d}`."""
    spec = part.format_spec
    written = spec.values if isinstance(spec, ast.JoinedStr) else []
    plain = all(isinstance(each, ast.Constant) and each.value in ("d", "s") for each in written)
    return plain and part.conversion in (-1, ord("s"))


def _formatted(text: str, call: ast.Call) -> ast.expr | None:
    """Find the number in `"cuda:{}".format(i)`, `"cuda:{0:d}"`, `"cuda:{rank}"`; None where there is more than it."""
    try:
        ((before, name, spec, conversion),) = Formatter().parse(text)
    except ValueError:  # no template, or one with more parts
        return None
    if before != "cuda:" or spec not in ("", "d", "s") or conversion not in (None, "s"):
        return None
    match call:
        case ast.Call(args=[argument], keywords=[]) if name in ("", "0") and not isinstance(argument, ast.Starred):
            return argument
        case ast.Call(args=[], keywords=[ast.keyword(arg=str(given), value=argument)]) if given == name:
            return argument
    return None


def _made(file: File, node: ast.expr) -> tuple[bool, ast.expr] | None:
    """Return whether a torch.device is made, and of what: `torch.device("cuda")`; None for several arguments."""
    if isinstance(node, ast.Call) and file.dotted(node.func) == "torch.device":
        return (True, node.args[0]) if len(node.args) == 1 and not node.keywords else None
    return False, node


def _asks(file: File, test: ast.expr) -> bool:
    """Return whether a condition is `torch.cuda.is_available()` and nothing else."""
    return isinstance(test, ast.Call) and not test.args and file.dotted(test.func) == "torch.cuda.is_available"


def _kept(file: File, inner: ast.expr) -> str | ast.expr:
    """The expression in the braces of an f-string: the node, or its text if its place is not known exactly."""
    return inner if file.has_exact_place(inner) else ast.unparse(inner)


def device_name(name: str) -> bool:
    """Return whether something of this name is a device by all likelihood: `device`, `self.train_device`, `dev0`."""
    return bool(_DEVICE_NAME.search(name) or names_kind(name)) and not _NO_DEVICE.search(name)


def names_kind(name: str) -> bool:
    """Return whether something of this name is the type of a device: `device_type`, `self.devicetype`."""
    return bool(_KIND_NAME.search(name))


def function_for(how: Use) -> str:
    """The runtime's function that gives the device in use for a use of it."""
    return {Use.DEVICE: "device", Use.KIND: "kind"}.get(how, "name")


def resolver_for(name: str) -> str:
    """The runtime's function that resolves what is kept under a name: a device's name, or its type."""
    return "resolve_kind" if names_kind(name) else "resolve"


def _text_or_kind(name: str) -> Use:
    return Use.KIND if names_kind(name) else Use.TEXT


def is_text(node: ast.expr, text: str) -> bool:
    """Return whether a node is exactly this text."""
    return isinstance(node, ast.Constant) and node.value == text


def is_asked_about(file: File, node: ast.expr) -> bool:
    """Return whether a class is only compared with: in isinstance, in `type(x) is C`, or in an annotation."""
    inner: ast.AST = node
    around = file.parent(node)
    while isinstance(around, ast.Tuple | ast.List | ast.Set) or (
        isinstance(around, ast.BinOp) and isinstance(around.op, ast.BitOr)
    ):
        inner, around = around, file.parent(around)
    match around:
        case ast.Call(func=function, args=[_, asked]) if asked is inner:
            return file.is_builtin(function, "isinstance") or file.is_builtin(function, "issubclass")
        case ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn()]):
            return True
        case ast.arg():
            return True
        case ast.FunctionDef(returns=annotation) | ast.AnnAssign(annotation=annotation):
            return annotation is inner
    return False


def names_default(name: str, value: ast.expr) -> bool:
    """Return whether something of this name is a device by all likelihood, or a backend where its value is "nccl"."""
    return name.lower().endswith("backend") if is_text(value, "nccl") else device_name(name)


def index_name(file: File, node: ast.expr) -> bool:
    """Return whether an expression is the number of a device by its name: `rank`, `args.gpu`, `local_rank`."""
    name = name_of(node)
    return index_name_of(name)


def index_name_of(name: str) -> bool:
    """Return whether a name says that it is the number of a device."""
    return bool(_INDEX_NAME.fullmatch(name))


_LISTS_OF_INDICES = re.compile(r"(?:gpu|device)_?(?:ids|idxs|indices|list)|gpus", re.IGNORECASE)
_GIVES_INDEX = {
    "torch.cuda.current_device", "torch.cuda.device_count", "torch.distributed.get_rank",
    "torch.distributed.get_node_local_rank", "torch.distributed.distributed_c10d.get_rank",
}  # fmt: skip


def is_card(file: File, node: ast.expr) -> bool:
    """Return whether it is a device's number in any context: 0, torch.cuda.current_device()."""
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, ast.Call) and file.dotted(node.func) == "torch.cuda.current_device"


def is_index(file: File, node: ast.expr, depth: int = 3) -> bool:
    """Return whether it is a device's number where it is used as a device: a number, a rank, a sum of these."""
    if is_card(file, node) or (index_name(file, node) and not _is_given_devices(file, node)):
        return True
    match node:
        case ast.Call(func=function):
            named = file.dotted(function)
            return named in _GIVES_INDEX or file.is_builtin(function, "int") or _is_of_tensor(file, node)
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return re.fullmatch(r"(?:local_?)?rank", key, re.IGNORECASE) is not None
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Mod() | ast.FloorDiv(), right=right):
            return not _is_text(left) and any(is_index(file, each, depth) for each in (left, right))
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name)):
            return bool(_LISTS_OF_INDICES.fullmatch(name))
        case ast.Name() if depth:
            values = [binding.value for binding in file.bindings(node)]
            return bool(values) and all(each is not None and is_index(file, each, depth - 1) for each in values)
    return False


def _is_of_tensor(file: File, call: ast.Call) -> bool:
    """Return whether it is a tensor's number of its device, -1 on the CPU: `x.get_device()`."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "get_device" or call.args or call.keywords:
        return False
    return file.dotted(function) is None and not file.project.owners("get_device")


def is_storage(file: File, node: ast.expr) -> bool:
    """Return whether it is a storage, which is moved in another way than a tensor: by its name, or in map_location."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in ("storage", "untyped_storage")
    if not isinstance(node, ast.Name):
        return False
    for each in file.bindings(node):
        arguments = file.parent(each.node) if isinstance(each.node, ast.arg) else None
        function = file.parent(arguments) if arguments is not None else None
        if isinstance(function, ast.Lambda) and _locates(file, function):
            return True
        if isinstance(function, ast.FunctionDef) and any(
            _locates(file, one) for one in file.reads(function.name, function)
        ):
            return True
    return node.id in ("storage", "untyped_storage")


def _locates(file: File, node: ast.expr) -> bool:
    """Return whether a function is given to torch.load as map_location."""
    around = file.parent(node)
    if isinstance(around, ast.keyword):
        return around.arg == "map_location"
    return isinstance(around, ast.Call) and file.dotted(around.func) == "torch.load" and around.args[1:2] == [node]


def _is_given_devices(file: File, node: ast.expr) -> bool:
    """Return whether a name such as `gpu` holds devices alone: torch.device(...), a device's name."""
    values = [each.value for each in file.bindings(node)] if isinstance(node, ast.Name) else []
    return bool(values) and all(each is not None and _makes_device(file, each) for each in values)


def _makes_device(file: File, node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and file.dotted(node.func) == "torch.device":
        return True
    return said(file, node) is not None or file.calls_runtime(node, "device")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


_FORMATS = re.compile(r"%s:%[dsi]|\{0?\}:(?:\{1?\}|\d+)")


def begins_device(file: File, node: ast.AST, whole: ast.expr) -> bool:
    """Return whether a text is the beginning of a device's name that `torch.device` is given: `"cuda" + number`."""
    if not isinstance(node, ast.Constant) or node.value not in ("cuda", "cuda:"):
        return False
    inner: ast.AST = node
    chosen = False
    while inner is not whole:
        around = file.parent(inner)
        match around:
            case ast.IfExp(test=test) if test is not inner:
                pass
            case ast.BinOp(left=left, op=ast.Add()) if left is inner:
                chosen = True
            case ast.JoinedStr(values=[first, *_]) if first is inner:
                chosen = True
            case _:
                return False
        inner = around
    return chosen


def is_listed(file: File, node: ast.expr) -> bool:
    """Return whether a text is a docstring, a part of a longer text, one of the values of an option, or a type."""
    inner: ast.AST = node
    around = file.parent(node)
    if isinstance(around, ast.Expr | ast.JoinedStr) or is_argument(file, node):
        return True
    if isinstance(around, ast.Call) and file.dotted(around.func) in ("os.path.join", "pathlib.Path"):
        return True
    if isinstance(around, ast.Compare):  # portable.kind() != "cuda"
        return file.calls_runtime(around.left, "kind", "name")
    while isinstance(around, ast.List | ast.Tuple | ast.Set):
        inner, around = around, file.parent(around)
    if inner is not node and isinstance(around, ast.keyword) and around.arg == _KERNEL_FOR:
        return True  # of several, and on another one it may run
    if isinstance(around, ast.Subscript) and around.slice is inner:
        return (file.dotted(around.value) or "").rpartition(".")[2] == "Literal"
    return isinstance(around, ast.keyword) and around.arg in ("choices", "dest")


def is_argument(file: File, node: ast.expr) -> bool:
    """Return whether a text is an argument of a command line: `["--device", "cuda"]`, `{"--device": "cuda"}`."""
    match file.parent(node):
        case ast.List(elts=words) | ast.Tuple(elts=words) if node in words[1:]:
            before: ast.expr | None = words[words.index(node) - 1]
        case ast.Dict(keys=keys, values=values) if node in values:
            before = keys[values.index(node)]
        case _:
            return False
    return isinstance(before, ast.Constant) and re.fullmatch(r"--?[A-Za-z][\w-]*", str(before.value)) is not None


def before_number(file: File, node: ast.AST) -> ast.expr | None:
    """Find the name of a device that a number is put behind: `dev` of f"{dev}:{rank}" and `torch.device(dev, 1)`."""
    match node:
        case ast.JoinedStr(values=[ast.FormattedValue(value=found), ast.Constant(value=str(text)), *rest]):
            is_number = text == ":" if rest else re.fullmatch(r":\d+", text) is not None
            return found if is_number else None
        case ast.BinOp(left=found, op=ast.Add(), right=ast.Constant(value=str(text))):
            return found if re.fullmatch(r":\d*", text) else None
        case ast.BinOp(left=found, op=ast.Add(), right=ast.JoinedStr(values=[ast.Constant(value=":"), _])):
            return found
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod(), right=ast.Tuple(elts=[found, _])):
            return found if _FORMATS.fullmatch(text) else None
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format"), args=[found, *_]):
            return found if _FORMATS.fullmatch(text) else None
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=":"), attr="join"),
            args=[ast.Tuple(elts=[found, _]) | ast.List(elts=[found, _])],
        ):
            return found
        case ast.Call(func=function, args=[found, *more], keywords=names) if len(more) + len(names) == 1:
            return found if file.dotted(function) == "torch.device" else None
    return None


def cannot_be(file: File, node: ast.expr, text: str) -> bool:
    """Return whether the program says that an expression has another text: by an assertion above, or its choices."""
    texts = texts_of(file, node) if isinstance(node, ast.Attribute) else None
    if texts is not None:
        return text not in texts
    written, scope = ast.unparse(node), file.scope(node)
    for each in file.walk.parents:
        match each:
            case ast.Assert(test=ast.Compare(left=left, ops=[ast.In() | ast.Eq()], comparators=[given])):
                if each.lineno < node.lineno and ast.unparse(left) == written and file.scope(left) is scope:
                    parts = given.elts if isinstance(given, ast.List | ast.Tuple | ast.Set) else [given]
                    return all(isinstance(part, ast.Constant) and part.value != text for part in parts)
    return False


TWO_KINDS = (frozenset({"cuda"}), frozenset({"cuda", "cpu"}))
"""Results of `texts_of` for a device that is CUDA's, and for one that is CUDA's or the CPU."""


def texts_of(file: File, node: ast.expr, depth: int = 4) -> frozenset[str] | None:
    """The names of devices that an expression may have, as the file says them; None where one is not known.

    None as well where a "cuda" among them is not seen to be a device: the port leaves such a text.
    """
    match node:
        case ast.Constant(value=str(text)):
            chosen = any(isinstance(each, ast.IfExp) and said(file, each) is not None for each in file.ancestors(node))
            known = text != "cuda" or chosen or use(file, node) is not Use.UNKNOWN
            return frozenset({text}) if known else None
        case ast.IfExp(body=body, orelse=orelse):
            return _together(file, [body, orelse], depth)
        case ast.Name() if depth:
            return _together(file, [each.value for each in file.bindings(node)], depth - 1)
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if depth:
            stores = [
                each for each in file.walk.scopes
                if isinstance(each, ast.Attribute) and each.attr == name and isinstance(each.ctx, ast.Store)
            ]  # fmt: skip
            statements = [file.parent(each) for each in stores]
            plain = [each.value if isinstance(each, ast.Assign | ast.AnnAssign) else None for each in statements]
            return _together(file, plain, depth - 1)
        case ast.Attribute(value=value, attr=name) if is_options(value):
            choices = [_choices(each) for each in file.walk.parents if isinstance(each, ast.Call)
                       and getattr(each.func, "attr", "") == "add_argument" and option_of(each) == name]  # fmt: skip
            return choices[0] if len(choices) == 1 else None
    return None


def _choices(call: ast.Call) -> frozenset[str] | None:
    """The values that an option of the command line may have: `choices=["cuda", "cpu"]`."""
    given = next((each.value for each in call.keywords if each.arg == "choices"), None)
    values = given.elts if isinstance(given, ast.List | ast.Tuple) else []
    texts = [each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return frozenset(texts) if texts and len(texts) == len(values) else None


def _together(file: File, nodes: list[ast.expr | None], depth: int) -> frozenset[str] | None:
    found: frozenset[str] = frozenset()
    for each in nodes:
        texts = None if each is None else texts_of(file, each, depth)
        if texts is None:
            return None
        found |= texts
    return found


def use(file: File, node: ast.expr) -> Use:
    """Find how an expression is used, from the code around it."""
    inner: ast.AST = node
    outer = file.parent(inner)
    beside_cpu = False
    while (isinstance(outer, ast.IfExp) and inner is not outer.test) or isinstance(outer, ast.BoolOp):
        if isinstance(outer, ast.IfExp):
            other = outer.orelse if inner is outer.body else outer.body
            beside_cpu |= isinstance(other, ast.Constant) and other.value in ("cpu", "mps", "npu", "xpu")
        inner, outer = outer, file.parent(outer)
    around = [outer, file.parent(outer), file.parent(file.parent(outer) or outer)] if outer is not None else []
    if any(each is not None and before_number(file, each) is inner for each in around):
        return Use.KIND
    found = _by_surroundings(file, inner, outer)
    return Use.TEXT if found is Use.UNKNOWN and beside_cpu else found


def _by_surroundings(file: File, inner: ast.AST, outer: ast.AST | None) -> Use:
    match outer:
        case ast.keyword():
            return _keyword_use(file, outer)
        case ast.Call():
            return _argument_use(file, outer, inner)
        case ast.Assign(targets=targets):
            return _named(file, outer, *targets)
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            return _named(file, outer, target)
        case ast.arguments():
            return _default_use(outer, inner)
        case ast.Return():
            function = next((each for each in file.ancestors(outer) if isinstance(each, ast.FunctionDef)), None)
            named = function is not None and device_name(function.name)
            return _text_or_kind(function.name) if function is not None and named else Use.UNKNOWN
        case ast.Dict(keys=keys, values=values):
            above = file.parent(outer)
            if isinstance(above, ast.Assign) and inner in values and _is_map(above):
                return Use.TEXT
            key = next((key for key, value in zip(keys, values, strict=True) if value is inner), None)
            text = key.value if isinstance(key, ast.Constant) else None
            return _text_or_kind(text) if isinstance(text, str) and device_name(text) else Use.UNKNOWN
        case ast.List() | ast.Tuple():
            above = file.parent(outer)
            if isinstance(above, ast.Assign) and all(isinstance(each, ast.Name) for each in above.targets):
                return _named(file, above, *above.targets)
    return Use.UNKNOWN


def _is_map(statement: ast.Assign) -> bool:
    """Return whether a table is kept as `map_location`: from names in a file to names of devices."""
    return all(isinstance(each, ast.Name) and each.id == "map_location" for each in statement.targets)


_KERNEL_FOR = "device_types"
"""The argument of torch.library.custom_op, and of functions around it, that says for which devices a kernel is."""
_REGISTERS = {"register_kernel", "register_autocast", "impl"}


def _keyword_use(file: File, keyword: ast.keyword) -> Use:
    call = file.parent(keyword)
    name = file.dotted(call.func) if isinstance(call, ast.Call) else None
    if keyword.arg is None or not device_name(keyword.arg) or name in _KNOWS_CUDA or keyword.arg == _KERNEL_FOR:
        return Use.UNKNOWN
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
        return Use.UNKNOWN
    to = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "to_empty")
    takes = to or (name is not None and name.startswith("torch.") and keyword.arg in ("device", "map_location"))
    if name in TAKES_KIND or names_kind(keyword.arg):
        return Use.KIND
    return Use.DEVICE if takes and name not in _TAKES_NAME else Use.TEXT


def why_unknown(file: File, node: ast.expr) -> str:
    """Return why the use of the text of a device is not known, for a reader."""
    around = file.parent(node)
    if _registers(file, node):
        return "says for which device a kernel is"
    if isinstance(around, ast.Compare) and isinstance(file.parent(around), ast.Assert):
        return "is asserted: where the port resolves that device, the assertion holds on CUDA alone"
    if isinstance(around, ast.Compare) and device_name(name_of(around.left)):
        return f"is compared with {file.text(around.left)}, the device that is asked for"
    return "is not seen to be a device"


def _registers(file: File, node: ast.expr) -> bool:
    """Return whether a text, or one of several, says for which device an operator is implemented."""
    around = file.parent(node)
    around = file.parent(around) if isinstance(around, ast.List | ast.Tuple | ast.Set) else around
    if isinstance(around, ast.keyword) and around.arg == _KERNEL_FOR:
        return True
    return isinstance(around, ast.Call) and name_of(around.func) in _REGISTERS


def _argument_use(file: File, call: ast.Call, argument: ast.AST) -> Use:
    if argument not in call.args:
        return Use.UNKNOWN
    position = call.args.index(argument)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "to" and position == 0:
        return Use.DEVICE
    name = file.dotted(call.func)
    if name is not None and _TAKES_DEVICE.get(name) == position:
        return Use.DEVICE
    if name is not None and TAKES_KIND.get(name) == position:
        return Use.KIND
    if name is not None and _TAKES_NAME.get(name) == position:
        return Use.KIND if len(call.args) + len(call.keywords) > 1 else Use.TEXT  # torch.device(type, index)
    if isinstance(call.func, ast.Name):
        for binding in file.bindings(call.func):
            if isinstance(binding.node, ast.FunctionDef):
                names = [each.arg for each in (*binding.node.args.posonlyargs, *binding.node.args.args)]
                if position < len(names) and device_name(names[position]):
                    return _text_or_kind(names[position])
    return Use.UNKNOWN


def _default_use(arguments: ast.arguments, default: ast.AST) -> Use:
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = list(zip(reversed(positional), reversed(arguments.defaults), strict=False))
    pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
    return next((_text_or_kind(a.arg) for a, d in pairs if d is default and device_name(a.arg)), Use.UNKNOWN)


def _named(file: File, statement: ast.AST, *targets: ast.expr) -> Use:
    around = file.parent(statement)
    if isinstance(around, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in around.bases):
        return Use.UNKNOWN
    found = Use.TEXT
    for target in targets:
        name = name_of(target)
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            name = str(target.slice.value)
        if device_name(name):
            found = Use.KIND if names_kind(name) else found
            continue
        handed = _handed_on(file, target) if isinstance(target, ast.Name) else set()
        if not handed:
            return Use.UNKNOWN
        found = Use.KIND if handed == {Use.KIND} else found
    return found


def _handed_on(file: File, target: ast.Name) -> set[Use]:
    """How what is assigned to a name of another kind (`loc`) is handed on as a device in the same scope."""
    scope = file.scope(target)
    found = set()
    for node, where in file.walk.scopes.items():
        if isinstance(node, ast.Name) and node.id == target.id and where is scope and isinstance(node.ctx, ast.Load):
            around = file.parent(node)
            if isinstance(around, ast.keyword):
                found.add(_keyword_use(file, around))
            if isinstance(around, ast.Call):
                found.add(_argument_use(file, around, node))
    return found - {Use.UNKNOWN}
