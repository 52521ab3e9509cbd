"""Facts from all files of a project: its classes with their methods, and the functions that TorchScript compiles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from toprope.port.project.reexports import Exports, exports_of, together
from toprope.port.project.scripted import Scripts, full_name, imports_of, reached, scripts_of

__all__ = [
    "OTHERS", "WORDS", "Class", "Facts", "Project", "facts_of", "is_options", "last_name", "option_of", "project_of",
]  # fmt: skip

WORDS = re.compile(
    rb"def\s+(?:cuda|is_cuda|to|type)\b|is_cuda\s*[:=][^=]"
    rb"|[!=]=\s*[\"']cuda|[\"']cuda[\"']\s*[!=]=|\bin\s*[\[({]\s*[\"']cuda|\bcase\s+[\"']cuda"
    rb"|default\s*=\s*[\"'](?:cuda|nccl)|choices\s*=\s*[\[({][^\])}]*[\"']cuda|import\s+\*|\w\.torch\."
    rb"|from\s+(?!torch\b)[\w.]+\s+import\b[^\n]*\b(?:torch|cuda)\b"
    rb"|attn_implementation\s*=|\bjit\b|\bScriptModule\b|\bscript_method\b|\bscript_if_tracing\b"
)
"""Reasons to look at all files together: a method whose calls rules rewrite, a comparison with "cuda", an option whose
default is a device, torch through another file, TorchScript."""

OTHERS = frozenset({"mps", "npu", "xpu", "hpu", "mlu", "musa", "xla", "rocm", "hip", "ipu", "privateuseone"})
"""Kinds of accelerators next to CUDA, as devices are named after them."""

_OPTIONS = re.compile(
    r"(?:\w*_)?(?:args?|opts?|options?|config|conf|cfg|flags|hparams|hps|params|settings|namespace|parsed|a|h|p)",
    re.IGNORECASE,
)

_PLAIN = {
    "object", "ABC", "Generic", "Protocol", "Enum", "IntEnum", "StrEnum", "Flag", "NamedTuple", "TypedDict", "dict",
    "list", "tuple", "set", "str", "int", "float", "Dataset", "IterableDataset", "Sampler", "DataLoader", "Exception",
    "UserDict", "OrderedDict", "Mapping", "MutableMapping", "Sequence", "Thread", "Process", "Function", "Optimizer",
}  # fmt: skip


@dataclass(frozen=True)
class Class:
    """A class of the project; classes of the same name are taken together.

    Attributes:
        bases: the last names of what it inherits from, layers of torch in full.
        members: the methods and properties that it defines, and `is_cuda` where it sets it.
        attributes: what it assigns to `self`.
        giving: those of the methods that return something.
    """

    bases: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    giving: frozenset[str] = frozenset()

    def __or__(self, other: Class) -> Class:
        return Class(
            self.bases | other.bases, self.members | other.members, self.attributes | other.attributes,
            self.giving | other.giving,
        )  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """Facts from one file.

    Attributes:
        classes: its classes by their names.
        scripts: what it has compiled, and what calls what.
        compared: functions, methods and classes with their arguments, by name and by place, that are compared with
            "cuda".
        options: options of the command line whose default is "cuda" or "nccl", as attributes of what is parsed.
        read: attributes of what holds parsed options, by its name, that it reads.
        exports: the names of torch that other files may import from it.
        kinds: options that can be given another kind of accelerator, "npu" or "mps": by their choices.
    """

    classes: dict[str, Class] = field(default_factory=dict)
    scripts: Scripts = field(default_factory=Scripts)
    compared: frozenset[tuple[str, str | int]] = frozenset()
    options: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    exports: Exports = field(default_factory=Exports)
    kinds: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Project:
    """Facts from all the files that are ported.

    Attributes:
        classes: the classes by their names.
        modules: the names under which programs may import the project's own files.
        scripted: functions, classes and methods ("Net.forward") that TorchScript compiles or may compile.
        compared: functions and their arguments that are compared with "cuda".
        options: options of the command line whose default is "cuda" or "nccl", as attributes of what is parsed.
        unread: those of them that no file reads by such a name.
        exports: the names of torch that can be imported from each module, by the module's last name.
        kinds: options that can be given another kind of accelerator.
    """

    classes: dict[str, Class] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    scripted: frozenset[str] = frozenset()
    compared: frozenset[tuple[str, str | int]] = frozenset()
    options: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()
    exports: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()

    def mentions_option(self, data: bytes) -> bool:
        """Return whether the bytes of a file may read an option whose default is a device."""
        return any(f".{name}".encode() in data for name in self.options)

    def ancestors(self, name: str) -> frozenset[str]:
        """A class and all that it inherits from, by their last names."""
        found, ahead = {name}, [name]
        while ahead:
            known = self.classes.get(ahead.pop())
            more = known.bases - found if known is not None else frozenset()
            found |= more
            ahead += more
        return frozenset(found)

    def owners(self, member: str) -> list[str]:
        """The classes that have a method of this name of their own, or inherit one from another class of these."""
        defined = {name for name, each in self.classes.items() if member in each.members}
        return sorted(name for name in self.classes if self.ancestors(name) & defined) if defined else []

    def gives(self, name: str, member: str) -> bool:
        """Return whether a method of a class may return something."""
        classes = [self.classes[each] for each in self.ancestors(name) if each in self.classes]
        return any(member in each.giving for each in classes)

    def descends(self, name: str, base: str) -> bool:
        """Return whether a class inherits from another one, or is it."""
        return base in self.ancestors(name)

    def may_be_module(self, name: str) -> bool:
        """Return whether a class may inherit from torch.nn.Module: it does, or from something that is not known."""
        outside = self.ancestors(name) - self.classes.keys() - _PLAIN
        return any(not each.endswith("Tensor") for each in outside)

    def may_be_tensor(self, name: str) -> bool:
        """Return whether a class inherits from a class of tensors."""
        return any(each.endswith("Tensor") or each == "Parameter" for each in self.ancestors(name) - {name})

    def defines(self, member: str) -> bool:
        """Return whether any class has a method of this name."""
        return any(member in each.members for each in self.classes.values())


def project_of(facts: Iterable[Facts], modules: Iterable[str] = (), names: Iterable[str] = ()) -> Project:
    """Return what several files say together.

    Args:
        facts: from `facts_of`, by file.
        modules: the names under which programs may import the files.
        names: the last name of each file as a module, in the order of the facts.
    """
    facts = list(facts)
    classes: dict[str, Class] = {}
    scripts = Scripts()
    compared: frozenset[tuple[str, str | int]] = frozenset()
    for each in facts:
        for name, found in each.classes.items():
            classes[name] = classes[name] | found if name in classes else found
        scripts = scripts | each.scripts
        compared |= each.compared
    options = frozenset(name for each in facts for name in each.options)
    exports = together([(name, each.exports) for name, each in zip(names, facts, strict=False)])
    unread = options - {name for each in facts for name in each.read}
    kinds = frozenset(name for each in facts for name in each.kinds)
    project = Project(
        classes, frozenset(modules), compared=compared, options=options, unread=unread, exports=exports, kinds=kinds
    )
    if not scripts.compiles:
        return project
    modules_of_torch = frozenset(name for name in classes if project.may_be_module(name))
    return replace(project, scripted=reached(scripts, classes, modules_of_torch, project.modules))


def facts_of(tree: ast.Module) -> Facts:
    """Return what a file says."""
    classes: dict[str, Class] = {}
    imports = imports_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found = _class(node, imports)
            classes[node.name] = classes[node.name] | found if node.name in classes else found
    options = frozenset(filter(None, map(_defaulted, ast.walk(tree))))
    read = frozenset(
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_options(node.value)
    )
    kinds = frozenset(filter(None, map(_of_kinds, ast.walk(tree))))
    return Facts(classes, scripts_of(tree), frozenset(_compared(tree)), options, read, exports_of(tree), kinds)


def option_of(call: ast.Call) -> str:
    """The attribute that `add_argument("-d", "--dist-backend")` gives to what is parsed; "" where that is not known."""
    for each in call.keywords:
        if each.arg == "dest":
            return str(each.value.value) if isinstance(each.value, ast.Constant) else ""
    names = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
    name = next((each for each in names if each.startswith("--")), names[0] if names else "")
    return name.lstrip("-").replace("-", "_")


def is_options(node: ast.expr) -> bool:
    """Return whether something holds parsed options by its name: `args`, `self.opt`, `train_config`."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return bool(_OPTIONS.fullmatch(name))


def _defaulted(node: ast.AST) -> str:
    """The option that a node makes, if its default is a device or "nccl"."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "add_argument":
        return ""
    for each in node.keywords:
        if each.arg == "default" and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
            return option_of(node) if each.value.value.partition(":")[0] in ("cuda", "nccl") else ""
    return ""


def _of_kinds(node: ast.AST) -> str:
    """The option that a node makes, if its choices name "cuda" and another kind of accelerator."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "add_argument":
        return ""
    given = next((each.value for each in node.keywords if each.arg == "choices"), None)
    texts = {each.value for each in ast.walk(given) if isinstance(each, ast.Constant)} if given is not None else set()
    return option_of(node) if "cuda" in texts and texts & OTHERS else ""


def _compared(tree: ast.Module) -> Iterator[tuple[str, str | int]]:
    """The arguments that functions compare with "cuda", each by its name and by its place in a call."""
    for around in ast.walk(tree):
        body = getattr(around, "body", ())
        for function in body if isinstance(body, list) else ():
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            is_method = isinstance(around, ast.ClassDef)
            called = around.name if isinstance(around, ast.ClassDef) and function.name == "__init__" else function.name
            asked = set(_asked(function))
            positional = [*function.args.posonlyargs, *function.args.args][is_method:]
            for place, each in enumerate(positional):
                if each.arg in asked:
                    yield called, place
            yield from ((called, each.arg) for each in (*positional, *function.args.kwonlyargs) if each.arg in asked)


def _asked(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The names that a function compares with "cuda", or chooses by."""
    for node in ast.walk(function):
        match node:
            case ast.Compare(left=ast.Name(id=name), ops=[_], comparators=[right]):
                if any(isinstance(each, ast.Constant) and each.value == "cuda" for each in ast.walk(right)):
                    yield name
            case ast.Compare(left=ast.Constant(value="cuda"), ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                if isinstance(right, ast.Name):
                    yield right.id
            case ast.Match(subject=ast.Name(id=name)):
                yield name


def _class(node: ast.ClassDef, imports: Mapping[str, str]) -> Class:
    members, attributes, giving = set(), set(), set()
    for each in node.body:
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                members.add(name)
                giving |= {name} if _gives(each) else set()
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                attributes.add(name)
                members |= {name} if name == "is_cuda" or isinstance(each.value, ast.Name | ast.Lambda) else set()
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                attributes.add(name)
                members |= {name} if name == "is_cuda" else set()
            case ast.Call(
                func=ast.Attribute(attr="register_buffer" | "register_parameter" | "add_module" | "register_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                attributes.add(name)
    bases = frozenset(_base(each, imports) for each in node.bases)
    giving |= members - {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return Class(bases, frozenset(members), frozenset(attributes), frozenset(giving))


def _gives(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method may return something: by a return with a value, a decorator, or in another class."""
    inner = list(ast.walk(function))
    returned = [each.value for each in inner if isinstance(each, ast.Return)]
    ends = isinstance(function.body[-1], ast.Raise | ast.Pass) or any(isinstance(each, ast.Yield) for each in inner)
    return ends or bool(function.decorator_list) or any(each is not None for each in returned)


def _base(node: ast.expr, imports: Mapping[str, str]) -> str:
    """The last name of what a class inherits from; a layer of torch in full, since projects reuse these names."""
    last, full = last_name(node), full_name(node, imports)
    kept = last in _PLAIN or last in ("Module", "Parameter", "ScriptModule") or last.endswith("Tensor")
    return full if full.startswith("torch.") and not kept else last


def last_name(node: ast.AST) -> str:
    """`Module` of `torch.nn.Module`, `List` of `List[int]`; "?" of what has no name."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return last_name(value)
    return "?"
