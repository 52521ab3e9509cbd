"""Rules TR057 to TR060: where what is loaded goes.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.analysis.tensor_facts import all_on_host
from toprope.port.family import Family
from toprope.port.file import File, is_vendored_runtime
from toprope.port.rule import Example, Kind
from toprope.port.syntax.nodes import nodes_of

__all__ = ["FAMILY", "says_cuda"]

FAMILY = Family(
    "loading", "Loading",
    words=[b"torch.load", b"map_location", b"import load", b"load_state_dict_from_url", b"load_url"],
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
WHOLE = FAMILY.rule(
    "TR057b",
    Kind.REVIEW,
    "torch.load(f, weights_only=False): the same as TR057, but for a file of TorchScript",
    why="""Where it loads more than weights, torch.load hands a file of torch.jit.save on to torch.jit.load, which takes
    no function as map_location and raises a ValueError, on CUDA too. Read such a file with
    torch.jit.load(f, map_location=portable.device()).""",
    source="tried: ValueError of torch.jit.load",
    examples=[
        Example(
            """
            import torch

            model = torch.load(path, weights_only=False)
            """,
            """
            import torch
            from toprope.device import portable

            model = torch.load(path, weights_only=False, map_location=portable.map_location)
            """,
        ),
    ],
)
_DOWNLOADS = ("torch.hub.load_state_dict_from_url", "torch.utils.model_zoo.load_url")


@FAMILY.call("torch.load", *_DOWNLOADS)
def _bare(file: File, node: ast.Call) -> bool:
    known = [each.arg for each in node.keywords]
    most = 1 if file.dotted(node.func) == "torch.load" else 2
    given = [*node.args, *(each.value for each in node.keywords if each.arg in ("f", "url"))]
    if "map_location" in known or None in known or not (given and len(node.args) <= most):
        return False
    if any(isinstance(each, ast.Starred) for each in node.args) or _is_of_cpu(file, node, given[0]):
        return False
    rule = WHOLE if most == 1 and _may_be_scripted(file, node) else BARE
    file.report(rule, node, edits=file.add_argument(node, f"map_location={file.portable('map_location')}"))
    return False


def _may_be_scripted(file: File, load: ast.Call) -> bool:
    """Return whether torch.load may be given a program of TorchScript, which it hands on to torch.jit.load.

    It does so where it loads more than weights: that was so by default before torch 2.6.
    """
    weights = file.argument(load, None, "weights_only")
    if weights is not None:
        return not (isinstance(weights, ast.Constant) and weights.value)
    return bool(file.project.scripted) and is_vendored_runtime(file.runtime)


def _is_of_cpu(file: File, load: ast.Call, given: ast.expr) -> bool:
    """Return whether the text says that a file, which is given, has tensors of the CPU alone."""
    around = file.parent(load)
    if isinstance(around, ast.Attribute) and around.attr == "numpy":
        return True
    where = ast.dump(given)
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


def says_cuda(node: ast.expr | None) -> bool:
    """Return whether a text that is put together here begins with cuda."""
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and says_cuda(node.values[0])
    if isinstance(node, ast.BinOp):
        return says_cuda(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return says_cuda(node.func.value)
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
    if says_cuda(value):
        plain = isinstance(value, ast.Constant) and value.value == "cuda"
        given: tuple[str | ast.AST, ...] = ("()",) if plain else ("(", value, ")")
        _settle_text(file, value)
        file.report(LOCATION, value, edits=file.replace(value, file.portable("device"), *given))
        return isinstance(value, ast.Constant)
    if isinstance(value, ast.Dict):
        told = [each for each in value.values if says_cuda(each)]
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
