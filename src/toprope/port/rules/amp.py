"""Rules TR051 to TR056: mixed precision.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.analysis.places import said
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.syntax.edits import Edit

__all__ = ["FAMILY"]

FAMILY = Family("amp", "Mixed precision", words=[b"cuda", b"autocast", b"GradScaler"])

_R = Kind.REVIEW
_TRIED = "tried: both kinds of autocast and GradScaler in a torch without CUDA"


def _one(before: str, after: str, first: str = "import torch") -> Example:
    """An example of some lines in a program that imports torch."""
    return Example(f"{first}\n\n{before}\n", f"{first}\nfrom toprope.device import portable\n\n{after}\n")


CUDA_AMP = FAMILY.rule(
    "TR051", _R, "torch.cuda.amp.autocast(): the same for the device in use, off on the CPU",
    why="""torch.cuda.amp.autocast computes in float16 on CUDA and switches itself off where there is no GPU, while
    torch.autocast("cpu") would be on, in bfloat16: another result. The rewrite keeps both: float16 on the device in
    use, off on the CPU. Look whether the device computes well in float16.""",
    source=_TRIED,
    examples=[
        _one("with torch.cuda.amp.autocast(enabled=half):\n    run()",
             "with portable.autocast(enabled=half):\n    run()"),
        Example(
            """
            from torch.cuda.amp import autocast as ac, GradScaler

            scaler = GradScaler(enabled=half)
            with ac():
                run()
            """,
            """
            from toprope.device.portable import autocast as ac, GradScaler

            scaler = GradScaler(enabled=half)
            with ac():
                run()
            """,
        ),
        Example(
            """
            try:
                from torch.cuda.amp import autocast, other
            except ImportError:
                autocast = None
            """,
            """
            try:
                from torch.cuda.amp import other
                from toprope.device.portable import autocast
            except ImportError:
                autocast = None
            """,
        ),
    ],
)  # fmt: skip
AUTOCAST = FAMILY.rule(
    "TR052", _R, 'torch.autocast("cuda", ...): the same for the device in use, off on the CPU',
    why="""torch.autocast("cuda") is off, with a warning, where there is no GPU. The rewrite is off on the CPU too, and
    takes float16 where no dtype was given, as CUDA's does. Look whether the device computes well in that dtype.""",
    source=_TRIED,
    examples=[
        _one('with torch.autocast("cuda", dtype=torch.bfloat16):\n    run()',
             "with portable.autocast(dtype=torch.bfloat16):\n    run()"),
        _one('with torch.amp.autocast(device_type="cuda", enabled=half):\n    run()',
             "with portable.autocast(enabled=half):\n    run()"),
        _one('context = torch.autocast("cuda", torch.float16, half)',
             "context = portable.autocast(dtype=torch.float16, enabled=half)"),
        Example("import torch\n\ncontext = torch.autocast(device.type)\n", reported=False),
    ],
)  # fmt: skip
CHOSEN = FAMILY.rule(
    "TR052a", _R, 'torch.autocast("cuda" if torch.cuda.is_available() else "cpu"): the device in use, CPU too',
    why="""The program asks for mixed precision on the CPU as well, so torch's own class stays and is given the kind of
    the device in use: the CPU's results are those of before. The same holds for GradScaler.""",
    source=_TRIED,
    examples=[
        _one('with torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16):\n    run()',
             "with torch.autocast(portable.kind(), dtype=torch.bfloat16):\n    run()"),
        _one('kind = torch.autocast(device_type="cpu" if not torch.cuda.is_available() else "cuda")',
             "kind = torch.autocast(device_type=portable.kind())"),
        _one('scaler = torch.amp.GradScaler("cuda" if torch.cuda.is_available() else "cpu")',
             "scaler = torch.amp.GradScaler(portable.kind())"),
    ],
)  # fmt: skip
NO_TYPE = FAMILY.rule(
    "TR053", _R, "torch.amp.autocast() without a type of device: the device in use",
    why="""torch.cuda.amp.autocast cannot be replaced by torch.amp.autocast alone: that needs the type of the device as
    its first argument and fails with a TypeError without it.""",
    source="https://github.com/NVIDIA/physicsnemo/pull/1946",
    examples=[_one("with autocast(enabled=half):\n    run()", "with portable.autocast(enabled=half):\n    run()",
                   "from torch.amp import autocast")],
)  # fmt: skip
CUSTOM = FAMILY.rule(
    "TR054", _R, "torch.cuda.amp.custom_fwd, custom_bwd: the same for the device in use",
    why="""They tell autocast what to do in a function's forward and backward, by the type of the device. torch asks for
    it when the function is defined, the runtime at the first call: the import of a module asks no device.""",
    source=_TRIED,
    examples=[
        Example(
            """
            from torch.cuda.amp import custom_bwd, custom_fwd

            @custom_fwd
            def forward(context, x):
                return x
            """,
            """
            from toprope.device.portable import custom_bwd, custom_fwd

            @custom_fwd
            def forward(context, x):
                return x
            """,
        ),
        _one('@torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)\ndef f(x):\n    return x',
             "@portable.custom_fwd(cast_inputs=torch.float32)\ndef f(x):\n    return x"),
        _one('@torch.amp.custom_bwd(device_type="cuda")\ndef f(x):\n    return x',
             "@portable.custom_bwd()\ndef f(x):\n    return x"),
    ],
)  # fmt: skip
SCALER = FAMILY.rule(
    "TR055", _R, 'torch.cuda.amp.GradScaler(), torch.amp.GradScaler("cuda"): for the device in use, off on the CPU',
    why="""CUDA's GradScaler switches itself off where there is no GPU. torch.amp.GradScaler("cpu") would be on and
    scale losses by 65536; the rewrite is off on the CPU.""",
    source=_TRIED,
    examples=[
        _one("scaler = torch.cuda.amp.GradScaler(init_scale=8.0)", "scaler = portable.GradScaler(init_scale=8.0)"),
        _one('scaler = torch.amp.GradScaler("cuda", enabled=half)', "scaler = portable.GradScaler(enabled=half)"),
        _one("scaler = torch.GradScaler()", "scaler = portable.GradScaler()"),
    ],
)  # fmt: skip
STATE = FAMILY.rule(
    "TR056", Kind.PRESERVING, "torch.get_autocast_gpu_dtype(), is_autocast_enabled(): of the device in use",
    why="""Without the type of the device these ask CUDA. torch takes the type as the first argument since 2.4 alone;
    before that each kind of device has functions of its own, and the runtime calls those.""",
    source="https://docs.pytorch.org/docs/stable/amp.html",
    examples=[
        _one("dtype = torch.get_autocast_gpu_dtype()", "dtype = portable.get_autocast_dtype()"),
        _one("on = torch.is_autocast_enabled()", "on = portable.is_autocast_enabled()"),
        _one("torch.set_autocast_enabled(True)", "portable.set_autocast_enabled(True)"),
        _one("torch.set_autocast_gpu_dtype(torch.bfloat16)", "portable.set_autocast_dtype(torch.bfloat16)"),
        _one("on = is_autocast_enabled()", "on = portable.is_autocast_enabled()",
             "from torch import is_autocast_enabled"),
        Example('import torch\n\non = torch.is_autocast_enabled("cpu")\n', reported=False),
    ],
)  # fmt: skip

FAMILY.drop_in(
    CUDA_AMP,
    {"torch.cuda.amp.autocast": "autocast", "torch.cuda.amp.autocast_mode.autocast": "autocast"},
)
FAMILY.drop_in(
    SCALER,
    {"torch.cuda.amp.GradScaler": "GradScaler", "torch.cuda.amp.grad_scaler.GradScaler": "GradScaler"},
)
for _module in ("torch.cuda.amp", "torch.cuda.amp.autocast_mode"):
    FAMILY.drop_in(CUSTOM, ("custom_fwd", "custom_bwd"), below=_module)

_AUTOCAST_ARGUMENTS = ("device_type", "dtype", "enabled", "cache_enabled")


@FAMILY.call("torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast")
def _autocast(file: File, call: ast.Call) -> bool:
    kind = file.argument(call, 0, "device_type")
    if kind is None:
        if not call.args and all(each.arg is not None for each in call.keywords):
            file.report(NO_TYPE, call, edits=file.rename(call, "autocast"))
            file.done(call.func)
        return False
    if _chosen(file, kind):
        return False
    edits = _without_kind(file, call, kind, "autocast", _AUTOCAST_ARGUMENTS)
    if edits:
        file.report(AUTOCAST, call, edits=edits)
        file.done(call.func)
        file.done(kind)
    return False


def _chosen(file: File, kind: ast.expr) -> bool:
    """Rewrite a kind of device that is "cpu" where there is no CUDA: it is on there, too."""
    named = said(file, kind)
    if named is None or not named.chosen:
        return False
    if named.index is None:
        file.report(CHOSEN, kind, edits=file.replace(kind, f"{file.portable('kind')}()"))
    else:
        file.report(CHOSEN, kind, held_back="it is the kind of a device, and no number belongs to it")
    file.done(kind)
    return True


def _without_kind(file: File, call: ast.Call, kind: ast.expr, name: str, arguments: tuple[str, ...]) -> list[Edit]:
    """Let the call go to the runtime without its first argument, if that says CUDA; the others by their names."""
    named = said(file, kind)
    if named is None or isinstance(named.index, ast.AST) or any(isinstance(each, ast.Starred) for each in call.args):
        return []
    if len(call.args) > len(arguments):
        return []
    given = next((each for each in call.keywords if each.value is kind), kind)
    edits = [file.rename(call, name), file.remove_argument(call, given)]
    edits += [
        file.before(each, f"{arguments[number]}=")
        for number, each in enumerate(call.args)
        if number and each is not kind
    ]
    return edits


@FAMILY.call("torch.amp.custom_fwd", "torch.amp.custom_bwd")
def _custom(file: File, call: ast.Call) -> bool:
    kind = file.argument(call, None, "device_type")
    if kind is None or call.args or _chosen(file, kind):
        return False
    name = "custom_fwd" if (file.dotted(call.func) or "").endswith("fwd") else "custom_bwd"
    if edits := _without_kind(file, call, kind, name, ()):
        file.report(CUSTOM, call, edits=edits)
        file.done(call.func)
        file.done(kind)
    return False


_SCALER_ARGUMENTS = ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")


@FAMILY.call("torch.amp.GradScaler", "torch.GradScaler", "torch.amp.grad_scaler.GradScaler")
def _scaler(file: File, call: ast.Call) -> bool:
    kind = file.argument(call, 0, "device")
    if kind is None:
        if call.args or any(each.arg is None for each in call.keywords):
            return False
        edits = [file.rename(call, "GradScaler")]
    elif _chosen(file, kind):
        return False
    else:
        edits = _without_kind(file, call, kind, "GradScaler", _SCALER_ARGUMENTS)
        file.done(kind) if edits else None
    if edits:
        file.report(SCALER, call, edits=edits)
        file.done(call.func)
    return False


_STATES = {
    "torch.get_autocast_gpu_dtype": ("get_autocast_dtype", 0),
    "torch.set_autocast_gpu_dtype": ("set_autocast_dtype", 1),
    "torch.is_autocast_enabled": ("is_autocast_enabled", 0),
    "torch.set_autocast_enabled": ("set_autocast_enabled", 1),
}


@FAMILY.call(*_STATES)
def _state(file: File, call: ast.Call) -> bool:
    name, arguments = _STATES[file.dotted(call.func) or ""]
    if call.keywords or len(call.args) != arguments:
        return False
    file.report(STATE, call, edits=file.rename(call, name))
    file.done(call.func)
    return False
