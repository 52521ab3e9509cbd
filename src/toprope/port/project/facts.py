"""Facts from all files of a project: its classes with their methods, and the functions that TorchScript compiles.

Made by `scan` for all files; rules and conditions ask it through `file`. A fact must not depend on the order of
files. Tests: tests/port/test_port_unseen_second.py, tests/port/test_port_unseen.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from toprope.port.project.asked import OTHERS, Argument, answers_of, is_one_device, option_of
from toprope.port.project.patched import PATCHES, imported_in, patched_in
from toprope.port.project.reexports import Exports, exports_of, together
from toprope.port.project.replicas import in_one_program, makes_replicas
from toprope.port.project.script_reach import reached
from toprope.port.project.scripted import Scripts, full_name, imports_of, scripts_of
from toprope.port.syntax.nodes import Nodes, name_of, nodes_of

__all__ = [
    "OTHERS", "SCRIPTS", "WORDS", "Class", "Facts", "Project", "chooses_device", "facts_of", "is_options", "last_name",
    "option_of", "project_of",
]  # fmt: skip

WORDS = re.compile(
    rb"def\s+(?:cuda|is_cuda|to|type|get_device)\b|is_cuda\s*[:=][^=]"
    rb"|[!=]=\s*[\"']cuda|[\"']cuda[\"']\s*[!=]=|\bin\s*[\[({]\s*[\"']cuda|\bcase\s+[\"']cuda"
    rb"|[\"']cuda[\"']\s+(?:not\s+)?in\b|startswith\(\s*[\"']cuda|[\"']cuda[\"']\s*:"
    rb"|default\s*=\s*[\"'](?:cuda|nccl)|help\s*=[^\n]*\bcuda\b|(?m:^\w+(?:\.\w+)+\s*=\s*[\"'](?:cuda|nccl))"
    rb"|(?m:^_C\s*=)|choices\s*=\s*[\[({][^\])}]*[\"'](?:cuda|nccl)|import\s+\*|\w\.torch\."
    rb"|from\s+(?!torch\b)[\w.]+\s+import\b[^\n]*\b(?:torch|cuda)\b"
    rb"|class\s+\w+\s*\([^)]*\b(?:LightningLite|Fabric|Trainer|(?:MM)?DataParallel)\b"
    rb"|\bDataParallel\b|attn_implementation\s*=|\bjit\b|\bScriptModule\b|\bscript_method\b|\bscript_if_tracing\b"
    rb"|\bset_default_tensor_type\b|\b[A-Z]\w*\.(?:\w+_)?(?:dev|device)\b|" + PATCHES
)
"""Reasons to look at all files together: a method whose calls rules rewrite, a comparison with "cuda", an option whose
default is a device, torch through another file, TorchScript."""

SCRIPTS = re.compile(rb"\bjit\b|\bScriptModule\b|\bscript_method\b|\bscript_if_tracing\b")
"""Words of files that have something to do with TorchScript."""

Fingerprint = tuple[tuple[str, int], ...]
"""The functions of a file with their lines."""

_CUDA = ast.Constant("cuda")
_OPTIONS = re.compile(
    r"(?:\w*_)?(?:args?|opts?|options?|config|conf|cfg|flags|hparams|hps|params|settings|namespace|parsed)|[ahp]",
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
        handed: arguments of functions that are handed on to another function, with that function's.
        tables: names of tables that have a key for CUDA and none for an NPU.
        options: options of the command line that may be "cuda" or "nccl", as attributes of what is parsed, and
            attributes that a module gives such a text ("DEVICE" of `cfg.DEVICE`, "MODEL.DEVICE" of `cfg.MODEL.DEVICE`).
        read: attributes of what holds parsed options, by its name, that it reads.
        exports: the names of torch that other files may import from it.
        kinds: options that can be given another kind of accelerator, "npu" or "mps": by their choices.
        assigned: names such as `_C` that the module gives a value, which others could take for extensions.
        patched: names of torch that it replaces for a while, with the lines.
        imported: the full names of what it imports.
        has_type_of_cuda: whether it makes a type of CUDA's tensors the default one.
        asked_classes: attributes by the name of a device that it reads of classes: "Options.device".
        replicas: whether it makes a DataParallel, and starts no process for each card.
    """

    classes: dict[str, Class] = field(default_factory=dict)
    scripts: Scripts = field(default_factory=Scripts)
    handed: frozenset[tuple[Argument, Argument]] = frozenset()
    tables: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    exports: Exports = field(default_factory=Exports)
    kinds: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    patched: frozenset[tuple[str, int]] = frozenset()
    imported: frozenset[str] = frozenset()
    has_type_of_cuda: bool = False
    asked_classes: frozenset[str] = frozenset()
    replicas: bool = False


@dataclass(frozen=True)
class Project:
    """Facts from all the files that are ported.

    Attributes:
        classes: the classes by their names.
        modules: the names under which programs may import the project's own files.
        at_top: those of them that stand for a file or package in the outermost folder, and hide what is installed.
        scripted: functions, classes and methods ("Net.forward") that TorchScript compiles or may compile.
        scripted_in: the same of each file, by its fingerprint.
        handed: arguments of functions that are handed on to another function, with that function's.
        tables: names of tables that have a key for CUDA and none for an NPU.
        options: options of the command line that may be "cuda" or "nccl", and attributes that a module gives it.
        unread: those of them that no file reads by such a name.
        exports: the names of torch that can be imported from each module, by the module's last name.
        kinds: options that can be given another kind of accelerator.
        assigned: names such as "defaults._C" that a module gives a value.
        patched: names of torch that tests replace, with the place.
        imported: the names in what any file imports of the project's modules: "a", "b" and "c" of "a.b.c".
        has_type_of_cuda: whether any file makes a type of CUDA's tensors the default one.
        asked_classes: attributes by the name of a device that any file reads of classes: "Options.device".
        replicas: the module that makes a DataParallel, by the modules that are in one program with it.
    """

    classes: dict[str, Class] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    at_top: frozenset[str] = frozenset()
    scripted: frozenset[str] = frozenset()
    scripted_in: Mapping[Fingerprint, frozenset[str]] = field(default_factory=dict)
    handed: frozenset[tuple[Argument, Argument]] = frozenset()
    tables: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()
    exports: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    patched: Mapping[str, str] = field(default_factory=dict)
    imported: frozenset[str] = frozenset()
    has_type_of_cuda: bool = False
    asked_classes: frozenset[str] = frozenset()
    replicas: Mapping[str, str] = field(default_factory=dict)

    def mentions_option(self, data: bytes) -> bool:
        """Return whether the bytes of a file may read an option whose default is a device."""
        return any(f".{name}".encode() in data for name in self.options)

    def names_setting(self, node: ast.Attribute) -> bool:
        """Return whether an attribute is one of those that a module gives the name of a device: `cfg.MODEL.DEVICE`."""
        return isinstance(node.value, ast.Attribute) and f"{node.value.attr}.{node.attr}" in self.options

    def sets(self, tree: ast.AST, target: ast.AST) -> bool:
        """Return whether a module gives such an attribute its value here: `_C.MODEL.DEVICE = "cuda"`."""
        return (
            isinstance(tree, ast.Module)
            and any(target in each.targets for each in tree.body if isinstance(each, ast.Assign))
            and isinstance(target, ast.Attribute)
            and bool(self.options.intersection(settings_of(ast.Module([ast.Assign([target], _CUDA)], []))))
            and not _is_read(tree, target)
        )

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


def project_of(
    facts: Iterable[Facts],
    modules: Iterable[str] = (),
    names: Iterable[str] = (),
    folders: Iterable[str] = (),
) -> Project:
    """Return what several files say together.

    Args:
        facts: from `facts_of`, by file.
        modules: the names under which programs may import the files.
        names: the last name of each file as a module, in the order of the facts.
        folders: the name of the folder of each file.
    """
    facts, names, modules = list(facts), list(names), frozenset(modules)
    classes: dict[str, Class] = {}
    for each in facts:
        for name, found in each.classes.items():
            classes[name] = classes[name] | found if name in classes else found
    options = frozenset(name for each in facts for name in each.options)
    exports = together([(name, each.exports) for name, each in zip(names, facts, strict=False)])
    unread = options - {name for each in facts for name in each.read}
    kinds = frozenset(name for each in facts for name in each.kinds)
    project = Project(
        classes, frozenset(modules), options=options, unread=unread, exports=exports, kinds=kinds,
        handed=frozenset[tuple[Argument, Argument]]().union(*(each.handed for each in facts)),
        tables=frozenset[str]().union(*(each.tables for each in facts)),
        assigned=frozenset(f"{name}.{one}" for name, each in zip(names, facts, strict=False) for one in each.assigned),
        patched={one: f"{name or 'this file'}, line {line}" for name, each in zip_longest(names, facts)
                 for one, line in sorted(each.patched, reverse=True)},
        imported=frozenset(
            part for each in facts for name in each.imported for part in name.split(".")
            if name.startswith(".") or not modules or name.partition(".")[0] in modules
        ),
        has_type_of_cuda=any(each.has_type_of_cuda for each in facts),
        asked_classes=frozenset[str]().union(*(each.asked_classes for each in facts)),
        replicas=in_one_program((name, each.imported, each.replicas) for name, each in zip(names, facts, strict=False)),
    )  # fmt: skip
    if not any(each.scripts.compiles for each in facts):
        return project
    modules_of_torch = frozenset(name for name in classes if project.may_be_module(name))
    places = zip_longest(names, folders, facts, fillvalue="")
    files = [(name, folder, each.scripts) for name, folder, each in places if isinstance(each, Facts)]
    reach = reached(files, modules_of_torch, project.modules)
    scripted_in: dict[Fingerprint, frozenset[str]] = {}
    for (_, _, scripts), compiled in zip(files, reach, strict=True):
        scripted_in[scripts.fingerprint] = scripted_in.get(scripts.fingerprint, frozenset()) | compiled
    return replace(project, scripted=frozenset[str]().union(*reach), scripted_in=scripted_in)


def facts_of(tree: ast.Module, *, scripts: bool = True) -> Facts:
    """Return what a file says.

    Args:
        tree: the file.
        scripts: whether any file of the project has to do with TorchScript.
    """
    classes: dict[str, Class] = {}
    nodes = Nodes(tree)
    imports = imports_of(nodes.statements)
    for node in nodes.statements:
        if isinstance(node, ast.ClassDef):
            found = _class(node, imports)
            classes[node.name] = classes[node.name] | found if node.name in classes else found
    options = frozenset(filter(None, map(_defaulted, nodes.calls))) | frozenset(settings_of(tree))
    read = frozenset(
        node.attr
        for node in nodes.all
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_options(node.value)
    )
    kinds = frozenset(filter(None, map(_of_kinds, nodes.calls)))
    answers = answers_of(tree, nodes)
    return Facts(
        classes, scripts_of(tree, nodes, imports) if scripts else Scripts(), answers.handed, answers.tables,
        options, read, exports_of(tree), kinds, frozenset(_assigned(tree)),
        frozenset(patched_in(nodes.calls)), frozenset(imported_in([*nodes.statements, *nodes.calls])),
        any(map(_sets_type, nodes.calls)), frozenset(_asked_of_classes(nodes.all)), makes_replicas(nodes),
    )  # fmt: skip


def _asked_of_classes(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_one_device(node.attr):
            owner = last_name(node.value)
            if owner[:1].isupper():
                yield f"{owner}.{node.attr}"


def _sets_type(node: ast.AST) -> bool:
    """Return whether a node is `torch.set_default_tensor_type(torch.cuda.FloatTensor)`, or what was made of it."""
    if not isinstance(node, ast.Call) or last_name(node.func) != "set_default_tensor_type" or not node.args:
        return False
    return "cuda" in ast.unparse(node.args[0]) or "portable" in ast.unparse(node.func)


def _assigned(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            if isinstance(target, ast.Name) and (target.id == "_C" or target.id.endswith("_ext")):
                yield target.id


def is_options(node: ast.expr) -> bool:
    """Return whether something holds parsed options by its name: `args`, `self.opt`, `train_config`."""
    return bool(_OPTIONS.fullmatch(name_of(node)))


def _defaulted(node: ast.Call) -> str:
    """The option that a node makes, if it may be a device: by its default, its choices, or the help that names cuda."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "add_argument":
        return ""
    given = {each.arg: each.value for each in node.keywords}
    default, name = given.get("default"), option_of(node)
    text = default.value if isinstance(default, ast.Constant) else None
    if (isinstance(text, str) and text.partition(":")[0] in ("cuda", "nccl")) or chooses_device(node):
        return name
    if text not in (None, "", "cpu", "auto") or "choices" in given:
        return ""
    said = given.get("help")
    says = isinstance(said, ast.Constant) and re.search(r"\bcuda\b", str(said.value)) is not None
    return name if says and default is not None and is_one_device(name) else ""


def chooses_device(call: ast.Call) -> bool:
    """Return whether an option for a device has "cuda" among its choices, or one for a backend "nccl".

    Its name says what it is for: the choices of `--kernel` may be "cuda" and "triton". With "npu" among them the
    program has a way of its own.
    """
    name = option_of(call)
    wanted = {"cuda"} if is_one_device(name) else {"nccl"} if name.lower().endswith("backend") else set()
    given = [each.value for each in call.keywords if each.arg in ("choices", "type")]
    lists = [part for each in given for part in nodes_of(each) if isinstance(part, ast.List | ast.Tuple | ast.Set)]
    texts = {each.value for part in lists for each in part.elts if isinstance(each, ast.Constant)}
    return bool(texts & wanted) and "npu" not in texts


def settings_of(tree: ast.Module) -> Iterator[str]:
    """Attributes that a module gives the name of a device for others to read: "MODEL.DEVICE" of `_C.MODEL.DEVICE`."""
    for statement in tree.body:
        match statement:
            case ast.Assign(
                targets=[ast.Attribute(value=holder, attr=name) as target], value=ast.Constant(value=str(text))
            ):
                is_backend = text == "nccl" and name.lower().endswith("backend")
                is_device = text.partition(":")[0] == "cuda" and (
                    is_one_device(name) or name.lower().endswith("backend")
                )
                if (is_device or is_backend) and not _is_read(tree, target):
                    above = holder.attr if isinstance(holder, ast.Attribute) else ""
                    yield f"{above}.{name}" if above else name


def _is_read(tree: ast.Module, target: ast.Attribute) -> bool:
    return any(
        isinstance(each, ast.Attribute) and each.attr == target.attr and isinstance(each.ctx, ast.Load)
        for each in nodes_of(tree)
    )


def _of_kinds(node: ast.Call) -> str:
    """The option that a node makes, if its choices name "cuda" and another kind of accelerator."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "add_argument":
        return ""
    given = next((each.value for each in node.keywords if each.arg == "choices"), None)
    texts = {each.value for each in nodes_of(given) if isinstance(each, ast.Constant)} if given is not None else set()
    return option_of(node) if "cuda" in texts and texts & OTHERS else ""


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
    for inner in nodes_of(node):
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
    inner = nodes_of(function)
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
