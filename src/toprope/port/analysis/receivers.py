"""Receivers: whether `x` in `x.cuda()` may be an object of a class of the project that has a `cuda` of its own.

A rule rewrites a method by its name, which is right for tensors and modules. So where a class among the ported files
defines the name, a receiver is looked at: what is seen to be a tensor, a module of torch or an object of another class
is rewritten; what is seen to be of the class, or is not known, is left. Unknown is pessimistic.

Called by the rules for methods (`moves`, `tensors`, `tests`, `devices`, `numbers`); tests/port/test_port_receivers.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from toprope.port.file import File
from toprope.port.project.facts import last_name
from toprope.port.project.scripted import is_outside
from toprope.port.syntax.nodes import nodes_of
from toprope.port.syntax.scopes import Binding

__all__ = ["is_for_own_to", "why_left"]

_TENSOR = "tensor"
_SOME_TENSOR = "tensor or a class below it"
_LAYER = "module of torch that computes a tensor"
_OTHER = "object of another library"
_SOME_MODULE = "module"
_OR_BELOW = "+"  # behind the name of a class: an object of it or of a class that inherits from it

Types = frozenset[str]
"""Types that an expression may have; None means "not known", and no types at all "nothing but itself"."""

_MOST = 12  # steps from a name to what it is
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS_OF_TENSORS = re.compile(
    r"torch\.(?:(?:nn\.functional|linalg|fft|special|nn\.init)\.\w+|[a-z]\w*|(?:cuda\.)?\w*Tensor|nn\.Parameter"
    r"|nn\.parameter\.Parameter|autograd\.Variable)"
)
_NO_TENSOR = {
    "torch.load", "torch.compile", "torch.vmap", "torch.device", "torch.get_device_module", "torch.cond",
    "torch.while_loop", "torch.classes", "torch.ops", "torch.save", "torch.no_grad", "torch.enable_grad",
    "torch.inference_mode",
}  # fmt: skip
_CONTAINERS = re.compile(
    r"torch\.nn\.(?:parallel\.|modules\.)?(?:\w+\.)?(?:Sequential|Module\w*|Parameter\w*|Data\w*|Distributed\w*)"
)
_SAME = {"torch.compile", "copy.deepcopy", "copy.copy", "torch.nn.SyncBatchNorm.convert_sync_batchnorm"}
_RETURN_SELF = {
    "to", "cuda", "cpu", "npu", "xpu", "half", "float", "double", "bfloat16", "type", "eval", "train", "requires_grad_",
    "share_memory", "share_memory_", "to_empty", "apply", "pin_memory",
}  # fmt: skip
# Methods that tensors have and modules have not, of a name that is hardly anything else's.
_ONLY_TENSORS = {
    "unsqueeze", "squeeze", "view", "view_as", "reshape", "permute", "contiguous", "long", "int", "bool", "byte",
    "expand", "expand_as", "transpose", "type_as", "detach", "masked_fill", "masked_select", "index_select", "gather",
    "scatter_", "fill_", "zero_", "normal_", "uniform_", "new_zeros", "new_ones", "new_tensor", "new_full", "new_empty",
    "argmax", "argmin", "topk", "cumsum", "clamp", "clamp_", "logical_not", "softmax", "log_softmax", "sigmoid",
    "matmul", "bmm", "flatten", "unbind", "narrow", "repeat_interleave", "numel",
}  # fmt: skip
_PARTS_OF_TENSORS = {"data", "grad", "T", "mT", "H", "real", "imag", "values", "indices"}
_ALTERNATIVE = re.compile(r"from_\w+|load_from_\w+")


def why_left(file: File, receiver: ast.expr, *members: str) -> str:
    """Return why a call of a receiver's method must stay as it is, without a full stop; "" where it may be rewritten.

    Args:
        file: the file.
        receiver: the expression before the method's name.
        members: the method that is rewritten, then those that the rewrite calls instead. One of these counts only for
            classes that inherit the first one from torch, since others have no such method to call.
    """
    project = file.project
    owners = [(name, members[0]) for name in project.owners(members[0])]
    for member in members[1:]:
        owners += [(name, member) for name in project.owners(member) if project.may_be_module(name)]
    if not owners:
        return ""
    types = _Inference(file).types(receiver)
    for name, member in owners:
        known = types is not None and bool({name, name + _OR_BELOW} & types)
        if known:
            return f"{name} has a method {member} of its own"
    call = file.parent(file.parent(receiver) or receiver)
    is_used = isinstance(call, ast.Call) and not isinstance(file.parent(call), ast.Expr)
    for name, member in owners:
        if is_used and member == members[0] and not project.gives(name, member):
            continue  # its method returns nothing, and something is done with what this one returns
        if types is None and member != members[0] and _is_unrelated(file, receiver, name):
            continue
        if types is None or _may_be(file, types, name):
            return f"what it is called on is not known, and may be of {name}, which has a method {member} of its own"
    return ""


_MODULE = re.compile(
    r".*(?:model|net|module|encoder|decoder|backbone|head|layer|block|vae|pipe|generator|discriminator|critic|actor|policy"
    r"|agent|learner|student|teacher|ema|wrapper|criterion|loss_fn|embed).*|g|d|self|cls|obj|it",
    re.IGNORECASE,
)


def _is_unrelated(file: File, receiver: ast.expr, owner: str) -> bool:
    """Return whether a receiver of no known type is hardly an object of a class that only the rewrite's method is of.

    The file does not name the class nor one below it, and the receiver is called by no name of a module.
    """
    project, names = file.project, file.walk.names
    related = {name for name in project.classes if project.descends(name, owner)}
    star = any(
        isinstance(each, ast.ImportFrom) and any(alias.name == "*" for alias in each.names)
        for each in nodes_of(file.walk.module.node)
    )
    named = isinstance(receiver, ast.Name | ast.Attribute) and not _MODULE.fullmatch(last_name(receiver))
    attributes = {each.attr for each in file.walk.scopes if isinstance(each, ast.Attribute)}
    return named and not star and not related & (names | attributes)


def _may_be(file: File, types: Types, owner: str) -> bool:
    project = file.project
    if _SOME_TENSOR in types and project.may_be_tensor(owner):
        return True
    if _SOME_MODULE in types and project.may_be_module(owner):
        return True
    return any(each.endswith(_OR_BELOW) and project.descends(owner, each.removesuffix(_OR_BELOW)) for each in types)


class _Inference:
    """Types that an expression may have, as far as the file and the project's classes say it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._project = file.project
        self._asked: set[ast.AST] = set()

    def types(self, node: ast.expr) -> Types | None:
        """The types; None where they are not known."""
        return self._types(node) or None

    def _types(self, node: ast.expr | None) -> Types | None:
        if node is None or len(self._asked) > _MOST:
            return None
        if node in self._asked:
            return frozenset()
        self._asked.add(node)
        try:
            return self._look(node)
        finally:
            self._asked.discard(node)

    def _all(self, nodes: Iterable[ast.expr | None]) -> Types | None:
        found: Types = frozenset()
        for each in nodes:
            types = self._types(each)
            if types is None:
                return None
            found |= types
        return found

    def _look(self, node: ast.expr) -> Types | None:
        if self._narrowed(node):
            return frozenset({_SOME_TENSOR})
        match node:
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
            case ast.IfExp(body=body, orelse=orelse):
                return self._all((body, orelse))
            case ast.BoolOp(values=values):
                return self._all(values)
            case ast.NamedExpr(value=value) | ast.UnaryOp(operand=value, op=ast.USub() | ast.Invert()):
                return self._types(value)
            case ast.BinOp(left=left, right=right):
                sides = self._types(left), self._types(right)
                return frozenset({_TENSOR}) if frozenset({_TENSOR}) in sides else None
            case ast.Compare(left=left):
                return frozenset({_TENSOR}) if self._is_tensor(left) else None
            case ast.Subscript(value=value):
                return frozenset({_TENSOR}) if self._is_tensor(value) else None
            case ast.Constant() | ast.List() | ast.Tuple() | ast.Dict() | ast.ListComp():
                return frozenset({_OTHER})
        return None

    def _is_tensor(self, node: ast.expr) -> bool:
        types = self._types(node)
        return bool(types) and types is not None and types <= {_TENSOR, _SOME_TENSOR}

    # Names

    def _name(self, node: ast.Name) -> Types | None:
        file = self._file
        latest = self._latest(node)
        if latest is not None:
            return self._types(latest)
        bindings = file.bindings(node)
        if not bindings:
            return None
        found: Types = frozenset()
        for each in bindings:
            types = self._binding(each, node)
            if types is None:
                return None
            found |= types
        return found

    def _latest(self, node: ast.Name) -> ast.expr | None:
        """Return the value of the last assignment that always runs before this use, in its block or around it."""
        file = self._file
        at: ast.AST = node
        for above in (*file.ancestors(node), file.walk.module.node):
            for block in (getattr(above, name, None) for name in ("body", "orelse", "finalbody")):
                if not isinstance(block, list) or at not in block:
                    continue
                for each in reversed(block[: block.index(at)]):
                    match each:
                        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == node.id:
                            return value
                    if any(
                        isinstance(inner, ast.Name) and inner.id == node.id and not isinstance(inner.ctx, ast.Load)
                        for inner in nodes_of(each)
                    ):
                        return None
            if isinstance(above, _FUNCTION | ast.Lambda | ast.ClassDef | ast.ListComp | ast.GeneratorExp | ast.SetComp
                          | ast.DictComp | ast.For | ast.AsyncFor | ast.While):  # fmt: skip
                return None  # bound there, or in the turn before
            at = above
        return None

    def _binding(self, binding: Binding, name: ast.Name) -> Types | None:
        node = binding.node
        if isinstance(node, ast.arg):
            return self._argument(node)
        if isinstance(node, ast.AnnAssign):
            return self._annotated(node.annotation) or self._types(node.value)
        if binding.value is not None:
            return self._types(binding.value)
        if not isinstance(node, ast.Name):
            return None
        return self._target(node)

    def _target(self, node: ast.AST) -> Types | None:
        """Return what a name gets that is no plain `name = value`."""
        around = self._file.parent(node)
        match around:
            case ast.AugAssign():
                return frozenset()
            case ast.AnnAssign(annotation=annotation):
                return self._annotated(annotation)
            case ast.Tuple() | ast.List():
                statement = self._file.parent(around)
                if isinstance(statement, ast.Assign) and around in statement.targets:
                    value = statement.value
                    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(around.elts):
                        return self._types(value.elts[around.elts.index(node)])  # type: ignore[arg-type]
                    return frozenset({_TENSOR}) if self._is_tensor(value) else None
            case ast.For(target=target, iter=each) | ast.comprehension(target=target, iter=each) if target is node:
                return frozenset({_TENSOR}) if self._gives_tensors(each) else None
        return None

    def _gives_tensors(self, node: ast.expr) -> bool:
        match node:
            case ast.Call(func=ast.Attribute(attr="parameters" | "buffers" as name), args=[]):
                return not self._project.defines(name)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return bool(elements) and all(self._is_tensor(each) for each in elements)
        return self._is_tensor(node)

    def _argument(self, node: ast.arg) -> Types | None:
        function = self._file.parent(self._file.parent(node) or node)
        if not isinstance(function, _FUNCTION):
            return None
        around = self._file.parent(function)
        positional = [*function.args.posonlyargs, *function.args.args]
        if isinstance(around, ast.ClassDef) and positional[:1] == [node]:
            if any(last_name(each) in ("staticmethod", "classmethod") for each in function.decorator_list):
                return None
            return frozenset({around.name + _OR_BELOW})
        return None if node.annotation is None else self._annotated(node.annotation)

    def _annotated(self, node: ast.expr) -> Types | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except SyntaxError:
                return None
            name = ast.unparse(node)
            dotted = name if name.startswith("torch.") else None
            bound = self._file.walk.module.find(name)
            if len(bound) == 1 and bound[0].imported is not None:
                dotted = bound[0].imported
        else:
            dotted = self._file.dotted(node)
        match node:
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._either(left, right)
            case ast.Constant(value=None):
                return frozenset()
            case ast.Subscript(value=value, slice=inner):
                if last_name(value) in ("Optional", "Final", "ClassVar"):
                    return self._annotated(inner)
                if last_name(value) == "Union" and isinstance(inner, ast.Tuple):
                    return self._either(*inner.elts)
                if isinstance(inner, ast.Tuple) and (self._file.dotted(value) or "").startswith("jaxtyping."):
                    return self._annotated(inner.elts[0])
                return None
        if dotted is not None and re.fullmatch(r"torch\.(?:cuda\.)?\w*Tensor|torch\.nn\.Parameter", dotted):
            return frozenset({_SOME_TENSOR})
        if dotted == "torch.nn.Module":
            return frozenset({_SOME_MODULE})
        outside = dotted is not None and is_outside(dotted, self._project.modules)
        if isinstance(node, ast.Name | ast.Attribute) and last_name(node) in self._project.classes and not outside:
            return frozenset({last_name(node) + _OR_BELOW})
        return None

    def _either(self, *nodes: ast.expr) -> Types | None:
        found = [self._annotated(each) for each in nodes]
        return None if None in found else frozenset().union(*(each for each in found if each is not None))

    # Attributes

    def _attribute(self, node: ast.Attribute) -> Types | None:
        if node.attr in _PARTS_OF_TENSORS and self._is_tensor(node.value):
            return frozenset({_TENSOR})
        around = next((each for each in self._file.ancestors(node) if isinstance(each, ast.ClassDef)), None)
        if around is None or not isinstance(node.value, ast.Name):
            return None
        if self._name(node.value) != frozenset({around.name + _OR_BELOW}):
            return None
        return self._of_self(around, node.attr)

    def _of_self(self, around: ast.ClassDef, name: str) -> Types | None:
        """Return the types of all that this class assigns to `self.name`, if no related class assigns to it too."""
        project = self._project
        for other, known in project.classes.items():
            related = project.descends(other, around.name) or project.descends(around.name, other)
            if other != around.name and related and name in known.attributes:
                return None
        if any(base not in project.classes and base not in ("Module", "object") for base in
               project.ancestors(around.name) - {around.name}):  # fmt: skip
            return None
        given: list[ast.expr | None] = []
        for each in nodes_of(around):
            match each:
                case ast.Assign(targets=targets, value=value):
                    given += [value for target in targets if _is_of_self(target, name)]
                    if any(_is_of_self(inner, name) for target in targets if isinstance(target, ast.Tuple | ast.List)
                           for inner in target.elts):  # fmt: skip
                        return None
                case ast.AnnAssign(target=target, value=value) if _is_of_self(target, name):
                    given.append(value)
                case ast.Call(
                    func=ast.Attribute(attr="register_buffer" | "register_parameter"),
                    args=[ast.Constant(value=str(text)), *_],
                ) if text == name:
                    given.append(each.args[1] if len(each.args) > 1 else None)
                    if self._types(given[-1]) is None:
                        given[-1] = ast.Constant(None)  # a buffer and a parameter are tensors or None
                case ast.For(target=target) | ast.withitem(optional_vars=target) if target is not None:
                    if any(_is_of_self(inner, name) for inner in nodes_of(target)):
                        return None
        return self._all(given) if given else None

    # Calls

    def _call(self, node: ast.Call) -> Types | None:
        function = node.func
        dotted = self._file.dotted(function)
        if dotted is not None:
            return self._known(node, dotted)
        if isinstance(function, ast.Name):
            return self._plain_call(node, function)
        if not isinstance(function, ast.Attribute):
            return frozenset({_TENSOR}) if self._types(function) == frozenset({_LAYER}) else None
        name, value = function.attr, function.value
        if name in _ONLY_TENSORS and not self._project.defines(name):
            return frozenset({_TENSOR})
        if name[:1].isupper() and name in self._project.classes:
            return frozenset({name})
        if _ALTERNATIVE.fullmatch(name) and last_name(value) in self._project.classes:
            return frozenset({last_name(value) + _OR_BELOW})
        if isinstance(value, ast.Name) and value.id == "self":
            types = self._types(function)  # self.layer(x)
            return frozenset({_TENSOR}) if types == frozenset({_LAYER}) else None
        types = self._types(value)
        if types is None or (types and types <= {_TENSOR, _SOME_TENSOR}):
            return types
        is_torchs = types <= {_TENSOR, _SOME_TENSOR, _LAYER, _OTHER} or not self._project.defines(name)
        return types if name in _RETURN_SELF and is_torchs else None

    def _known(self, node: ast.Call, dotted: str) -> Types | None:
        """Return what a function or class of a known full name gives."""
        first = node.args[0] if node.args else None
        if dotted in _SAME:
            return self._types(first)
        if dotted in _NO_TENSOR:
            return None
        if _FUNCTIONS_OF_TENSORS.fullmatch(dotted):
            return frozenset({_TENSOR})
        if _CONTAINERS.fullmatch(dotted):
            return frozenset({_OTHER})
        if dotted.startswith("torch.nn.") and dotted.rpartition(".")[2][:1].isupper():
            return frozenset({_LAYER})
        root, _, last = dotted.partition(".")[0], "", dotted.rpartition(".")[2]
        outer = dotted.rpartition(".")[0].rpartition(".")[2]
        if not is_outside(dotted, self._project.modules):
            if last in self._project.classes:
                return frozenset({last})
            if outer in self._project.classes and _ALTERNATIVE.fullmatch(last):
                return frozenset({outer + _OR_BELOW})
        if not root or root in self._project.modules:
            return None
        if _ALTERNATIVE.fullmatch(last) and outer[:1].isupper() and not outer.startswith("Auto"):
            return frozenset({_OTHER})
        if last[:1].isupper() or dotted.startswith(("torchvision.models.", "torchvision.transforms.functional.")):
            return frozenset({_OTHER})
        return None

    def _plain_call(self, node: ast.Call, function: ast.Name) -> Types | None:
        if self._file.is_builtin(function, "super") and not node.args:
            return self._super(node)
        if self._file.is_builtin(function, "next") and len(node.args) == 1:
            return frozenset({_TENSOR}) if self._gives_tensors(node.args[0]) else None
        bindings = self._file.bindings(function)
        if function.id in self._project.classes:
            return frozenset({function.id})
        if len(bindings) == 1 and isinstance(bindings[0].node, ast.FunctionDef):
            return self._returned(bindings[0].node)
        return frozenset({_TENSOR}) if self._types(function) == frozenset({_LAYER}) else None

    def _super(self, node: ast.Call) -> Types | None:
        around = next((each for each in self._file.ancestors(node) if isinstance(each, ast.ClassDef)), None)
        if around is None:
            return None
        return frozenset(last_name(each) for each in around.bases) - {"?"} or frozenset({_OTHER})

    def _returned(self, function: ast.FunctionDef) -> Types | None:
        """Return what a function of the file returns, where every return says it."""
        inner: set[ast.AST] = set()
        for each in nodes_of(function):
            if each is not function and isinstance(each, _FUNCTION | ast.Lambda):
                inner |= set(nodes_of(each))
        own = [each for each in nodes_of(function) if each not in inner]
        if function.decorator_list or any(isinstance(each, ast.Yield | ast.YieldFrom) for each in own):
            return None
        return self._all([each.value for each in own if isinstance(each, ast.Return)])

    # Conditions

    def _narrowed(self, node: ast.expr) -> bool:
        """Return whether a condition around it asks for a tensor: `if isinstance(x, torch.Tensor): x = x.cuda()`."""
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            return False
        text = ast.unparse(node)
        at: ast.AST = node
        for above in self._file.ancestors(node):
            if isinstance(above, _FUNCTION | ast.Lambda | ast.ClassDef):
                return False
            if isinstance(above, ast.If) and at in above.body and self._says_tensor(above.test, text):
                return not any(  # another object by the same name in between
                    isinstance(each, ast.Name) and each.id == text.partition(".")[0] and isinstance(each.ctx, ast.Store)
                    for statement in above.body[: above.body.index(at)]
                    for each in nodes_of(statement)
                )
            if isinstance(above, ast.IfExp) and at is above.body and self._says_tensor(above.test, text):
                return True
            if isinstance(above, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp) and any(
                self._says_tensor(each, text) for generator in above.generators for each in generator.ifs
            ):
                return True
            at = above
        return False

    def _says_tensor(self, test: ast.expr, text: str) -> bool:
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                return any(self._says_tensor(each, text) for each in values)
            case ast.Call(func=ast.Name(id="isinstance"), args=[asked, kind]):
                kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
                return ast.unparse(asked) == text and all(
                    self._file.dotted(each) in ("torch.Tensor", "torch.autograd.Variable") for each in kinds
                )
            case ast.Call(args=[asked]):
                return self._file.dotted(test.func) == "torch.is_tensor" and ast.unparse(asked) == text
        return False


def is_for_own_to(file: File, node: ast.expr) -> bool:
    """Return whether a device is passed to a method `to` that may be the project's own: a text stays a text there."""
    around = next(each for each in file.ancestors(node) if not isinstance(each, ast.IfExp | ast.BoolOp | ast.keyword))
    if not isinstance(around, ast.Call) or not isinstance(around.func, ast.Attribute) or around.func.attr != "to":
        return False
    return bool(why_left(file, around.func.value, "to"))


def _is_of_self(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            return attr == name
    return False
