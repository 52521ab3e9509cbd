"""Rows 57 to 63: where what is loaded goes."""

from __future__ import annotations

import ast

from toprope.port.analysis.places import is_card
from toprope.port.analysis.tensor_facts import all_on_host
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.nodes import nodes_of

__all__ = ["FAMILY"]

FAMILY = Family(
    "loading", "Loading",
    words=[b"torch.load", b"map_location", b"safetensors", b"safe_open", b"device_map", b"pipeline", b"import load",
           b"load_state_dict_from_url", b"load_url"],
)  # fmt: skip

BARE = FAMILY.rule(
    "TR057",
    Kind.PRESERVING,
    "torch.load(f), torch.hub.load_state_dict_from_url(u): what was saved on an accelerator goes to the one in use",
    why="""A file that was saved on a GPU wants to be put back there, and raises where there is none. On CUDA nothing
    changes. A file that only has tensors of the CPU needs nothing: where the file itself saved them above, or takes
    what is loaded as an array (`torch.load(f).numpy()`), the call stays.""",
    source="tried: RuntimeError about deserializing an object on a CUDA device",
    examples=[
        Example(
            """
            import torch

            state = torch.load(path, weights_only=True)
            """,
            """
            import torch
            from toprope.device import portable

            state = torch.load(path, weights_only=True, map_location=portable.map_location)
            """,
        ),
        Example('import torch\n\nstate = torch.load(path, map_location="cpu")\n', reported=False),
        Example(
            """
            import torch

            state = torch.load(path, **options)
            """,
            reported=False,
        ),
        Example(
            """
            import torch

            x = torch.arange(4)
            torch.save([x, torch.zeros(4)], "pair")
            y, z = torch.load("pair")
            picture = torch.load(path).numpy()
            """,
            reported=False,
        ),
    ],
)
_DOWNLOADS = ("torch.hub.load_state_dict_from_url", "torch.utils.model_zoo.load_url")


@FAMILY.call("torch.load", *_DOWNLOADS)
def _bare(file: File, node: ast.Call) -> bool:
    known = [each.arg for each in node.keywords]
    most = 1 if file.dotted(node.func) == "torch.load" else 2
    if "map_location" in known or None in known or not 1 <= len(node.args) <= most:
        return False
    if any(isinstance(each, ast.Starred) for each in node.args) or _is_of_cpu(file, node):
        return False
    file.report(BARE, node, edits=file.add_argument(node, f"map_location={file.portable('map_location')}"))
    return False


def _is_of_cpu(file: File, load: ast.Call) -> bool:
    """Return whether the text says that a file has tensors of the CPU alone."""
    around = file.parent(load)
    if isinstance(around, ast.Attribute) and around.attr == "numpy":
        return True
    where = ast.dump(load.args[0])
    calls = [file.parent(each) for each in file.walk.scopes if file.dotted(each) == "torch.save"]
    saved = [
        each.args[0] for each in calls
        if isinstance(each, ast.Call) and len(each.args) > 1 and ast.dump(each.args[1]) == where
        and each.lineno < load.lineno
    ]  # fmt: skip
    return bool(saved) and all(all_on_host(file, each) for each in saved)


LOCATION = FAMILY.rule(
    "TR058",
    Kind.PRESERVING,
    'map_location="cuda": the device in use',
    why="""The index stays where there is one; on the CPU it is dropped.""",
    source="torch.load",
    examples=[
        Example(
            """
            import torch

            state = torch.load(path, map_location="cuda")
            other = torch.load(path, map_location=f"cuda:{rank}")
            """,
            """
            import torch
            from toprope.device import portable

            state = torch.load(path, map_location=portable.device())
            other = torch.load(path, map_location=portable.device(f"cuda:{rank}"))
            """,
        ),
    ],
)

FUNCTION = FAMILY.rule(
    "TR059",
    Kind.PRESERVING,
    "map_location=lambda storage, location: storage.cuda(r): the device in use",
    why="""The function moves every tensor to one GPU, which is what a device in its place says.""",
    source="torch.load",
    examples=[
        Example(
            """
            import torch

            state = torch.load(path, map_location=lambda storage, location: storage.cuda(rank))
            """,
            """
            import torch
            from toprope.device import portable

            state = torch.load(path, map_location=portable.device(rank))
            """,
        ),
        Example(
            """
            import torch

            state = torch.load(path, map_location=lambda storage, location: storage)
            """,
            reported=False,
        ),
    ],
)

NAMES = FAMILY.rule(
    "TR060",
    Kind.REVIEW,
    'map_location={"cuda:0": "cuda:1"}: to the devices in use, by the names in the file',
    why="""The keys name devices as the file has them and stay. What the dictionary does not name is put back where it
    was, which only works where that is.""",
    source="torch.load",
    examples=[
        Example(
            """
            import torch

            state = torch.load(path, map_location={"cuda:0": "cuda:%d" % rank})
            """,
            """
            import torch
            from toprope.device import portable

            state = torch.load(path, map_location={"cuda:0": portable.name("cuda:%d" % rank)})
            """,
        ),
        Example(
            """
            import torch

            state = torch.load(path, map_location={"cuda:0": "cpu"})
            """,
            reported=False,
        ),
    ],
)


def _says_cuda(node: ast.expr | None) -> bool:
    """Return whether a text that is put together here begins with cuda."""
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and _says_cuda(node.values[0])
    if isinstance(node, ast.BinOp):
        return _says_cuda(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _says_cuda(node.func.value)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_cuda(node.value)


def _settle_text(file: File, node: ast.expr) -> None:
    """Note that the beginning of a text is dealt with; what is put behind it is still looked at."""
    while True:
        file.done(node) if isinstance(node, ast.Constant) else file.pass_over(node)
        match node:
            case ast.JoinedStr(values=[first, *_]) | ast.BinOp(left=first) | ast.Call(func=ast.Attribute(value=first)):
                node = first
            case _:
                return


def _is_cuda(text: str) -> bool:
    return text.partition(":")[0] == "cuda"


@FAMILY.keyword("map_location")
def _location(file: File, node: ast.keyword) -> bool:
    value = node.value
    if _says_cuda(value):
        plain = isinstance(value, ast.Constant) and value.value == "cuda"
        given: tuple[str | ast.AST, ...] = ("()",) if plain else ("(", value, ")")
        _settle_text(file, value)
        file.report(LOCATION, value, edits=file.replace(value, file.portable("device"), *given))
        return isinstance(value, ast.Constant)
    if isinstance(value, ast.Dict):
        told = [each for each in value.values if _says_cuda(each)]
        for each in told:
            _settle_text(file, each)
            file.report(NAMES, each, edits=file.replace(each, f"{file.portable('name')}(", each, ")"))
        return all(isinstance(each, ast.Constant) for each in value.values)
    return isinstance(value, ast.Lambda) and _function(file, value)


def _function(file: File, node: ast.Lambda) -> bool:
    body = node.body
    names = [each.arg for each in node.args.args]
    if not isinstance(body, ast.Call) or not isinstance(body.func, ast.Attribute) or body.func.attr != "cuda":
        return False
    storage = body.func.value
    if not isinstance(storage, ast.Name) or names[:1] != [storage.id] or body.keywords or len(body.args) > 1:
        return False
    own = {each.id for each in nodes_of(body) if isinstance(each, ast.Name)} - {storage.id}
    if own & set(names) or (body.args and isinstance(body.args[0], ast.Starred)):
        return False
    given: tuple[str | ast.AST, ...] = (body.args[0],) if body.args else ()
    file.report(FUNCTION, node, edits=file.replace(node, f"{file.portable('device')}(", *given, ")"))
    if body.args:
        file.done_but(body, body.args[0])
        file.pass_over(node)
    return not body.args


TENSORS = FAMILY.rule(
    "TR061",
    Kind.PRESERVING,
    'safetensors: load_file(device="cuda"), safe_open(device=0): the device in use',
    why="""A number means a GPU. The library wants a text or a number, not a torch.device.""",
    source="safetensors.torch.load_file; safetensors.safe_open",
    examples=[
        Example(
            """
            from safetensors.torch import load_file

            weights = load_file(path, device="cuda:0")
            """,
            """
            from toprope.device import portable
            from safetensors.torch import load_file

            weights = load_file(path, device=portable.name("cuda:0"))
            """,
        ),
        Example(
            """
            from safetensors import safe_open

            with safe_open(path, framework="pt", device=0) as file:
                pass
            """,
            """
            from toprope.device import portable
            from safetensors import safe_open

            with safe_open(path, framework="pt", device=portable.name(0)) as file:
                pass
            """,
        ),
        Example(
            """
            from safetensors.torch import load_file

            weights = load_file(path, device="cpu")
            """,
            reported=False,
        ),
    ],
)
_LIBRARY = {"safetensors.torch.load_file": 1, "safetensors.safe_open": 2, "safetensors.torch.safe_open": 2}


@FAMILY.call(*_LIBRARY)
def _tensors(file: File, node: ast.Call) -> bool:
    device = file.argument(node, _LIBRARY[file.dotted(node.func) or ""], "device")
    if device is not None and (_says_cuda(device) or is_card(file, device)):
        _settle(file, device)
        file.report(TENSORS, device, edits=file.replace(device, *_name(file, device)))
    return False


def _settle(file: File, node: ast.expr) -> None:
    """Note that a device is dealt with; torch.cuda.current_device() itself is still looked at."""
    file.pass_over(node) if isinstance(node, ast.Call) else file.done(node)


def _name(file: File, node: ast.expr) -> tuple[str | ast.AST, ...]:
    if isinstance(node, ast.Constant) and node.value == "cuda":
        return (f"{file.portable('name')}()",)
    return f"{file.portable('name')}(", node, ")"


MAP = FAMILY.rule(
    "TR062",
    Kind.REVIEW,
    'from_pretrained(device_map="cuda"), device_map={"": 0}: the device in use',
    why="""Numbers in a device map mean GPUs. "auto" lets accelerate look for itself and is left alone.""",
    source="transformers' and accelerate's documentation of device_map",
    examples=[
        Example(
            """
            model = AutoModel.from_pretrained(name, device_map="cuda")
            """,
            """
            from toprope.device import portable
            model = AutoModel.from_pretrained(name, device_map=portable.name())
            """,
        ),
        Example(
            """
            import torch
            model = AutoModel.from_pretrained(name, device_map={"": 0})
            other = AutoModel.from_pretrained(name, device_map={"": torch.cuda.current_device()})
            """,
            """
            import torch
            from toprope.device import portable
            model = AutoModel.from_pretrained(name, device_map={"": portable.name(0)})
            other = AutoModel.from_pretrained(name, device_map={"": portable.name(portable.current_device())})
            """,
        ),
        Example('model = AutoModel.from_pretrained(name, device_map="auto")', reported=False),
    ],
)


@FAMILY.keyword("device_map")
def _map(file: File, node: ast.keyword) -> bool:
    value = node.value
    places = value.values if isinstance(value, ast.Dict) else [value]
    told = [each for each in places if _says_cuda(each) or is_card(file, each)]
    for each in told:
        _settle(file, each)
        file.report(MAP, each, edits=file.replace(each, *_name(file, each)))
    return bool(told)


PIPELINE = FAMILY.rule(
    "TR063",
    Kind.PRESERVING,
    "transformers.pipeline(device=0): the device in use",
    why="""A number means a GPU where torch has one, and otherwise what transformers takes it for.""",
    source="transformers.pipeline",
    examples=[
        Example(
            """
            from transformers import pipeline

            ask = pipeline("text-generation", model=name, device=0)
            """,
            """
            from toprope.device import portable
            from transformers import pipeline

            ask = pipeline("text-generation", model=name, device=portable.device(0))
            """,
        ),
        Example(
            """
            from transformers import pipeline

            ask = pipeline("text-generation", device=-1)
            """,
            reported=False,
        ),
    ],
)


@FAMILY.call("transformers.pipeline")
def _pipeline(file: File, node: ast.Call) -> bool:
    device = file.argument(node, None, "device")
    if device is not None and is_card(file, device):
        _settle(file, device)
        file.report(PIPELINE, device, edits=file.replace(device, f"{file.portable('device')}(", device, ")"))
    return False
