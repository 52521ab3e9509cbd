"""Rule TR019c: devices as attributes of classes, which are resolved when they are read.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay. More tests: tests/port/test_port_unseen_fifth.py.
"""

from __future__ import annotations

import ast
import re

from toprope.port.analysis.places import is_constant_cuda, names_default, resolver_for, said
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.edits import Edit
from toprope.port.syntax.nodes import nodes_of

__all__ = ["FAMILY"]

FAMILY = Family("attributes", "Attributes of classes", words=[b"cuda", b"nccl"])

ATTRIBUTE = FAMILY.rule(
    "TR019c", Kind.REVIEW, 'class C: device = "cuda": resolved when it is read, or when a dataclass is made',
    why="""A question at the import of a module freezes CUDA_VISIBLE_DEVICES before the program sets it. An attribute
    of a class becomes one that answers when it is read, as C.device and as self.device; what is assigned to
    an object hides it as before. The field of a dataclass gets a factory, and the class itself then no
    longer has the attribute. Models of pydantic and others that read their class when it is made are left:
    resolve the value where it is used. So are classes whose attributes the file reads as a table (`__dict__`, `vars`,
    `fields`), those with a metaclass or a base in another file, and a dataclass that is asked itself, as in
    `Options.device`.""",
    source="Python's documentation of descriptors and dataclasses",
    examples=[
        Example(
            """
            class Trainer:
                device = "cuda"

                def run(self, x):
                    return x.to(self.device)
            """,
            """
            from toprope.device import portable
            class Trainer:
                device = portable.attribute("cuda")

                def run(self, x):
                    return x.to(self.device)
            """,
        ),
        Example(
            """
            from dataclasses import dataclass

            @dataclass
            class Options:
                device: str = "cuda"
            """,
            """
            from toprope.device import portable
            from dataclasses import dataclass, field

            @dataclass
            class Options:
                device: str = field(default_factory=lambda: portable.resolve("cuda"))
            """,
        ),
        Example(
            """
            from dataclasses import dataclass, field

            @dataclass
            class Options:
                device: str = field(default="cuda:1", metadata={"help": "where"})
            """,
            """
            from toprope.device import portable
            from dataclasses import dataclass, field

            @dataclass
            class Options:
                device: str = field(default_factory=lambda: portable.resolve("cuda:1"), metadata={"help": "where"})
            """,
        ),
        Example(
            """
            from pydantic import BaseModel

            class Options(BaseModel):
                device: str = "cuda"
            """
        ),
    ],
)  # fmt: skip


@FAMILY.string("cuda", "cuda:*", "nccl")
def _text(file: File, node: ast.Constant) -> bool:
    return (node.value == "nccl" or said(file, node) is not None) and _default(file, node)


@FAMILY.call("torch.device")
def _device(file: File, node: ast.Call) -> bool:
    return is_constant_cuda(node) and _default(file, node)


def _default(file: File, node: ast.expr) -> bool:
    statement = file.parent(node)
    if isinstance(statement, ast.keyword):
        return _field(file, statement, node)
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return False
    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
    around = file.parent(statement)
    if not isinstance(around, ast.ClassDef) or not isinstance(target, ast.Name) or not names_default(target.id, node):
        return False
    return _attribute(file, around, statement, node)


def _attribute(file: File, around: ast.ClassDef, statement: ast.stmt, node: ast.expr) -> bool:
    bases = [ast.unparse(each) for each in around.bases]
    if any("Enum" in each for each in bases):
        return False
    is_dataclass = any(_is_dataclass(file, each) for each in around.decorator_list)
    if why := _read_as_text(file, around, _name(statement), is_dataclass):
        file.report(ATTRIBUTE, node, f"{why}: resolve it where it is used: portable.resolve(options.device)")
    elif is_dataclass and isinstance(statement, ast.AnnAssign):
        field, edits = _field_name(file)
        if field:
            made = f"{field}(default_factory=lambda: {file.portable(resolver_for(_name(statement)))}("
            file.report(ATTRIBUTE, node, edits=[file.replace(node, made, node, "))"), *edits])
        else:
            file.report(ATTRIBUTE, node, "resolve it where it is used: portable.resolve(options.device)")
    elif isinstance(statement, ast.AnnAssign) and (bases or around.decorator_list):
        file.report(ATTRIBUTE, node, "resolve it where it is used: portable.resolve(options.device)")
    else:
        resolver = resolver_for(_name(statement))
        by = f", {file.portable(resolver)}" if resolver != "resolve" else ""
        file.report(ATTRIBUTE, node, edits=file.replace(node, f"{file.portable('attribute')}(", node, f"{by})"))
    file.done(node)
    return True


_TABLES = re.compile(
    r"(?<!self)(?<!args)\.__dict__|\bvars\(\s*(?!self\b|args\b|opts?\b)|\bfields\(|__(?:annotations|dataclass_fields)__"
    r"|\b(?:get_type_hints|getmembers)\("
)


def _read_as_text(file: File, around: ast.ClassDef, name: str, is_dataclass: bool) -> str:
    """Return why something reads the attribute as a text, from the class and not by its name; "" where nothing does."""
    if found := _TABLES.search(file.source.text):
        return f"the file reads the attributes of classes ({found[0].strip(' .(')})"
    if any(each.arg == "metaclass" for each in around.keywords) or "metaclass" in file.source.text:
        return "a metaclass may read it"
    own = {each.name for each in nodes_of(file.walk.module.node) if isinstance(each, ast.ClassDef)}
    if far := (file.project.ancestors(around.name) & file.project.classes.keys()) - own:
        return f"{min(far)}, in another file, may read it"
    asked = f"{around.name}.{name}"
    if is_dataclass and (asked in file.project.asked_classes or re.search(rf"\b{asked}\b", file.source.text)):
        return f"the program reads {asked}"
    return ""


def _name(statement: ast.stmt) -> str:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    return target.id if isinstance(target, ast.Name) else ""


def _is_dataclass(file: File, decorator: ast.expr) -> bool:
    asked = decorator.func if isinstance(decorator, ast.Call) else decorator
    return file.dotted(asked) == "dataclasses.dataclass"


def _field_name(file: File) -> tuple[str, list[Edit]]:
    """The file's name for dataclasses.field, and the edit that gives it the name where it has none."""
    imports: list[tuple[ast.AST, str]] = []
    for name, bindings in file.walk.module.bindings.items():
        if all(each.imported == "dataclasses.field" for each in bindings):
            return name, []
        if all(each.imported == "dataclasses" for each in bindings):
            return f"{name}.field", []
        imports += [(each.node, name) for each in bindings if each.imported == "dataclasses.dataclass"]
    if len(imports) == 1 and "field" not in file.walk.names and isinstance(imports[0][0], ast.ImportFrom):
        return "field", [file.after(imports[0][0].names[-1], ", field")]
    return "", []


def _field(file: File, keyword: ast.keyword, node: ast.expr) -> bool:
    """`device: str = field(default="cuda")` of a dataclass."""
    call = file.parent(keyword)
    statement = file.parent(call) if isinstance(call, ast.Call) else None
    if keyword.arg != "default" or not isinstance(call, ast.Call) or not isinstance(statement, ast.AnnAssign):
        return False
    if file.dotted(call.func) != "dataclasses.field" or not isinstance(statement.target, ast.Name):
        return False
    if not names_default(statement.target.id, node):
        return False
    around = file.parent(statement)
    why = _read_as_text(file, around, statement.target.id, True) if isinstance(around, ast.ClassDef) else ""
    pieces = f"default_factory=lambda: {file.portable(resolver_for(statement.target.id))}(", node, ")"
    advice = f"{why}: resolve it where it is used: portable.resolve(options.device)" if why else ""
    file.report(ATTRIBUTE, node, advice, edits=() if why else file.replace(keyword, *pieces))
    file.done(node)
    return True
