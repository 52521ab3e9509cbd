"""Rules TR011 to TR014: the old classes of CUDA's tensors, a class for each dtype.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.analysis.places import is_asked_about
from toprope.port.analysis.receivers import why_left
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.edits import Edit

__all__ = ["FAMILY"]

FAMILY = Family("tensors", "Classes of tensors", words=[b"Tensor"])

_DTYPES = {
    "FloatTensor": "float32", "DoubleTensor": "float64", "HalfTensor": "float16", "BFloat16Tensor": "bfloat16",
    "LongTensor": "int64", "IntTensor": "int32", "ShortTensor": "int16", "CharTensor": "int8", "ByteTensor": "uint8",
    "BoolTensor": "bool",
}  # fmt: skip
_CLASSES = {f"torch.cuda.{name}": dtype for name, dtype in _DTYPES.items()}

MADE = FAMILY.rule(
    "TR011",
    Kind.REVIEW,
    "torch.cuda.FloatTensor(...): a tensor of that dtype on the device in use",
    why="""The classes are CUDA's, and torch advises against them. Of sizes they make an empty tensor, of data a copy:
    the runtime's function does the same.""",
    source="torch's documentation of torch.Tensor; tried",
    examples=[
        Example(
            """
            import torch

            x = torch.cuda.FloatTensor(2, 3).fill_(0)
            """,
            """
            import torch
            from toprope.device import portable

            x = portable.tensor(torch.float32, 2, 3).fill_(0)
            """,
        ),
        Example(
            """
            import torch as th

            x = th.cuda.LongTensor([1, 2])
            """,
            """
            import torch as th
            from toprope.device import portable

            x = portable.tensor(th.int64, [1, 2])
            """,
        ),
        Example(
            """
            import torch

            def f(x: torch.cuda.FloatTensor):
                return x
            """
        ),
        Example("import torch\n\nx = torch.FloatTensor(2)", reported=False),
    ],
)

CLASS = FAMILY.rule(
    "TR011a",
    Kind.PRESERVING,
    "Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor: the class for the device in use",
    why="""A class that is kept in a name or handed on is called, given to x.type() and to isinstance later. On CUDA the
    runtime's function gives that very class, on the CPU torch.FloatTensor; on another device a class that makes tensors
    there and does the same in x.type() and isinstance. It is left where torch takes its own classes alone, in
    annotations and comparisons, and where the import of a module would ask for the device.""",
    source="torch/csrc/utils/tensor_types.cpp; tried on the simulated card",
    examples=[
        Example(
            """
            import torch
            from torch.autograd import Variable

            cuda = torch.cuda.is_available()
            Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
            LongTensor = torch.cuda.LongTensor if cuda else torch.LongTensor
            for images, labels in loader:
                valid = Variable(Tensor(images.shape[0], 1).fill_(1.0), requires_grad=False)
                real, labels = Variable(images.type(Tensor)), labels.type(LongTensor)
            """,
            """
            import torch
            from torch.autograd import Variable
            from toprope.device import portable

            cuda = portable.is_available()
            Tensor = portable.tensor_type(torch.float32) if cuda else torch.FloatTensor
            LongTensor = portable.tensor_type(torch.int64) if cuda else torch.LongTensor
            for images, labels in loader:
                valid = Variable(Tensor(images.shape[0], 1).fill_(1.0), requires_grad=False)
                real, labels = Variable(images.type(Tensor)), labels.type(LongTensor)
            """,
        ),
        Example(
            """
            import torch

            def sample(shape, of=torch.cuda.LongTensor):
                Tensor = torch.cuda.FloatTensor
                return Tensor(shape), isinstance(shape, (torch.FloatTensor, torch.cuda.FloatTensor))
            """,
            """
            import torch
            from toprope.device import portable

            def sample(shape, of=torch.cuda.LongTensor):
                Tensor = portable.tensor_type(torch.float32)
                return Tensor(shape), isinstance(shape, (torch.FloatTensor, portable.tensor_type(torch.float32)))
            """,
        ),
        Example(
            """
            import torch

            Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
            torch.set_default_tensor_type(Tensor)
            """
        ),
    ],
)


def _dtype(file: File, node: ast.expr) -> str:
    """The dtype of a class as the file can say it: by the name that it has for torch; "" where it has none."""
    root: ast.AST = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name) or file.dotted(root) != "torch":
        return ""
    return f"{root.id}.{_CLASSES[file.dotted(node) or '']}"


@FAMILY.call(*_CLASSES)
def _made(file: File, node: ast.Call) -> bool:
    dtype = _dtype(file, node.func)
    if not dtype or node.keywords:
        return False
    text = file.portable("tensor")
    edits: Edit
    if node.args:
        edits = file.replace_between(node.func, node.args[0], f"{text}({dtype}, ", node.args[0])
        if file.source.text[: file.source.span(node.args[0])[0]].rstrip()[-1:] != "(" or _apart(file, node):
            return False
    else:
        edits = file.replace(node, f"{text}({dtype})")
    file.done(node.func)
    file.report(MADE, node, edits=edits)
    return False


def _apart(file: File, node: ast.Call) -> bool:
    """Return whether something but the opening parenthesis is between the class and the first argument."""
    between = file.source.text[file.source.span(node.func)[1] : file.source.span(node.args[0])[0]]
    return between.strip() != "("


TYPED = FAMILY.rule(
    "TR012",
    Kind.PRESERVING,
    "x.type(torch.cuda.LongTensor): that dtype, on the accelerator where it is, or moved to the one in use",
    why="""type() with a class of CUDA moves what is on the CPU to the current GPU, and leaves a tensor of another GPU
    where it is. x.to(device, dtype) would move that, too. Of a module type() also converts the numbers that are no
    floats. The runtime's function does all three.""",
    source="torch.Tensor.type; THPVariable_type in torch's source; torch.nn.Module.type",
    examples=[
        Example(
            """
            import torch

            y = x.type(torch.cuda.LongTensor)
            """,
            """
            import torch
            from toprope.device import portable

            y = portable.to_type(x, torch.int64)
            """,
        ),
        Example(
            """
            import torch

            copies = [each.clone().type(torch.cuda.FloatTensor).detach() for each in model.parameters()]
            """,
            """
            import torch
            from toprope.device import portable

            copies = [portable.to_type(each.clone(), torch.float32).detach() for each in model.parameters()]
            """,
        ),
        Example("import torch\n\ny = x.type(torch.LongTensor)", reported=False),
        Example(
            """
            import torch

            class Field:
                def type(self, wanted):
                    return wanted.__name__

            def name(field):
                return field.type(torch.cuda.LongTensor)
            """
        ),
    ],
)


@FAMILY.method("type")
def _typed(file: File, node: ast.Call) -> bool:
    assert isinstance(node.func, ast.Attribute)
    if len(node.args) != 1 or node.keywords:
        return False
    wanted = node.args[0]
    name = file.dotted(wanted)
    text = wanted.value if isinstance(wanted, ast.Constant) else None
    if name not in _CLASSES and text not in _CLASSES:
        return False
    dtype = _dtype(file, wanted) if name in _CLASSES else _by_text(file, str(text))
    if not dtype:
        return False
    file.done(wanted)
    edits = file.replace(node, f"{file.portable('to_type')}(", node.func.value, f", {dtype})")
    file.report(TYPED, node, edits=edits, held_back=why_left(file, node.func.value, "type", "to"))
    return False


def _by_text(file: File, text: str) -> str:
    """The dtype that a class's name as a text means, where the file has torch by its own name."""
    bound = file.walk.module.find("torch")
    return f"torch.{_CLASSES[text]}" if bound and all(each.imported == "torch" for each in bound) else ""


ASKED = FAMILY.rule(
    "TR013",
    Kind.REVIEW,
    'isinstance(x, torch.cuda.FloatTensor), x.type() == "torch.cuda.FloatTensor": dtype and device are asked',
    why="""A tensor of another card has another class and another text. What is asked is whether it is of this dtype and
    on an accelerator.""",
    source="tried on the simulated card",
    examples=[
        Example(
            """
            import torch

            assert isinstance(x, torch.cuda.FloatTensor)
            if x.type() == "torch.cuda.HalfTensor":
                work()
            """,
            """
            import torch
            from toprope.device import portable

            assert portable.is_tensor(x, torch.float32)
            if portable.is_tensor(x, torch.float16):
                work()
            """,
        ),
    ],
)


@FAMILY.node(ast.Call)
def _isinstance(file: File, node: ast.Call) -> bool:
    if not isinstance(node.func, ast.Name) or node.func.id != "isinstance" or len(node.args) != 2:
        return False
    if file.dotted(node.args[1]) not in _CLASSES or not file.is_builtin(node.func, "isinstance"):
        return False
    dtype = _dtype(file, node.args[1])
    if not dtype:
        return False
    file.done(node.args[1])
    file.report(ASKED, node, edits=file.replace(node, f"{file.portable('is_tensor')}(", node.args[0], f", {dtype})"))
    return False


@FAMILY.node(ast.Compare)
def _compared(file: File, node: ast.Compare) -> bool:
    if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq):
        return False
    asked, text = node.left, node.comparators[0]
    if not isinstance(text, ast.Constant) or text.value not in _CLASSES or not isinstance(asked, ast.Call):
        return False
    dtype = _by_text(file, str(text.value))
    if not isinstance(asked.func, ast.Attribute) or asked.func.attr != "type" or asked.args or not dtype:
        return False
    file.done(text)
    edits = file.replace(node, f"{file.portable('is_tensor')}(", asked.func.value, f", {dtype})")
    file.report(ASKED, node, edits=edits, held_back=why_left(file, asked.func.value, "type"))
    return True


DEFAULT = FAMILY.rule(
    "TR014",
    Kind.REVIEW,
    'torch.set_default_tensor_type("torch.cuda.FloatTensor"): default dtype and default device',
    why="""The function is deprecated. A default device makes factories draw on it, and a DataLoader that shuffles then
    wants a generator of that device. torch.Tensor(...) follows the default tensor type alone (TR014a).""",
    source="torch.set_default_tensor_type; torch.set_default_device",
    examples=[
        Example(
            """
            import torch

            torch.set_default_tensor_type("torch.cuda.FloatTensor")
            """,
            """
            import torch
            from toprope.device import portable

            portable.set_default_tensor_type(torch.float32)
            """,
        ),
        Example("import torch\n\ntorch.set_default_tensor_type(torch.DoubleTensor)", reported=False),
    ],
)


@FAMILY.call("torch.set_default_tensor_type")
def _default(file: File, node: ast.Call) -> bool:
    wanted = node.args[0] if len(node.args) == 1 and not node.keywords else None
    dtype = ""
    if isinstance(wanted, ast.Constant) and wanted.value in _CLASSES:
        dtype = _by_text(file, str(wanted.value))
    elif wanted is not None and file.dotted(wanted) in _CLASSES:
        dtype = _dtype(file, wanted)
    if not dtype:
        return False
    file.report(DEFAULT, node, edits=file.replace(node, f"{file.portable('set_default_tensor_type')}({dtype})"))
    return True


@FAMILY.reference(*_CLASSES)
def _class(file: File, node: ast.expr) -> bool:
    if isinstance(node, ast.Name) and not any(each.imported for each in file.bindings(node)) and not file.by_star(node):
        return True  # another name for it in the file: where that gets the class is a place of its own
    dtype = _dtype(file, node)
    if not dtype or _is_annotation(file, node):
        text = "the class itself is CUDA's; torch.tensor(..., dtype=..., device=...) makes such tensors"
        file.report(MADE, node, text)
        return True
    edits = file.replace(node, f"{file.portable('tensor_type')}({dtype})")
    file.report(CLASS, node, edits=edits, held_back=_why_kept(file, node))
    return True


def _is_annotation(file: File, node: ast.expr) -> bool:
    around = file.parent(node)
    return is_asked_about(file, node) and isinstance(around, ast.arg | ast.FunctionDef | ast.AnnAssign)


def _why_kept(file: File, node: ast.expr) -> str:
    """Return why the class cannot be another one here; "" where it can."""
    inner, outer = node, file.parent(node)
    while isinstance(outer, ast.IfExp):
        inner, outer = outer, file.parent(outer)
    match outer:
        case ast.ClassDef() | ast.Compare():
            return "it is compared, or inherited from"
        case ast.Dict(keys=keys) if inner in keys:
            return "it is a key"
    places = [inner]
    if isinstance(outer, ast.Assign | ast.AnnAssign):
        targets = outer.targets if isinstance(outer, ast.Assign) else [outer.target]
        places += [read for each in targets if isinstance(each, ast.Name) for read in file.reads(each.id, outer, each)]
    for each in places:
        call = file.parent(each)
        if isinstance(call, ast.Call) and file.dotted(call.func) == "torch.set_default_tensor_type":
            return "torch.set_default_tensor_type takes classes of torch alone"
    chosen = inner is not node or any(isinstance(each, ast.If) for each in file.ancestors(node))
    if not chosen and file.at_import(node) and not any(file.at_import(each) for each in places[1:]):
        return "the import of the module would ask for the device"
    return ""


@FAMILY.string(*_CLASSES)
def _text(file: File, node: ast.Constant) -> bool:
    file.report(ASKED, node, "the class's name as a text is CUDA's")
    return True
