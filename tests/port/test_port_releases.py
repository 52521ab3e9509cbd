"""Calls of torch in ported code and in the vendored file are there in the oldest release that `--vendor` promises.

A table says in which release each name and argument appeared, by torch's documentation. A name in neither part of it
fails the test, so that the author of a new call looks it up.
"""

import ast

import pytest

from toprope.port.files.pins import OLDEST
from toprope.port.registry import python_rules
from toprope.port.runtime.vendor import text

# Names and arguments by the first release that has them: pages of docs.pytorch.org/docs/RELEASE, of which "2.0" stands
# for 2.0 or older.
APPEARED = {
    "2.0": {
        # docs/2.0/torch.html, tensors.html, tensor_attributes.html
        "Generator(device)", "Tensor", "Tensor.pin_memory", "bool", "device", "dtype", "empty(device,dtype)", "float16",
        "float32", "float64", "int8", "int16", "int32", "int64", "ones(device,dtype)", "set_default_device",
        "set_default_dtype", "set_default_tensor_type", "uint8", "load(map_location)", "bfloat16",
        # docs/2.0/amp.html: torch.autocast(device_type, dtype, enabled, cache_enabled)
        "amp", "autocast", "cuda.amp", "cuda.amp.GradScaler",
        # docs/2.0/cuda.html
        "cuda", "cuda.OutOfMemoryError", "cuda.get_device_capability", "cuda.is_bf16_supported", "cuda.nvtx",
        "cuda.nvtx.range",
        # docs/2.0/nn.html, nn.functional.html
        "nn", "nn.Module", "nn.functional", "nn.functional.scaled_dot_product_attention",
        "nn.functional.scaled_dot_product_attention.__doc__", "nn.utils", "nn.utils.rnn", "nn.utils.rnn.PackedSequence",
        # docs/2.0/profiler.html, random.html; torch/autograd/profiler.py, profiler_util.py, serialization.py
        "profiler", "profiler.ProfilerActivity", "profiler.record_function", "random", "random.fork_rng",
        "initial_seed", "serialization",
        "serialization.default_restore_location", "version", "version.cuda", "autograd", "autograd.profiler",
        "autograd.profiler.profile", "autograd.profiler.profile.__init__",
        "autograd.profiler.profile.__init__.__code__",
        "autograd.profiler.profile.__init__.__code__.co_varnames", "autograd.profiler_util",
        "autograd.profiler_util.FormattedTimesMixin",
    },
    "2.1": {"compiler", "random.fork_rng(device_type)", "autograd.profiler.profile(use_device)",
            "nn.functional.scaled_dot_product_attention(scale)"},
    "2.3": {"amp.GradScaler", "GradScaler"},
    "2.4": {"amp.custom_fwd", "amp.custom_bwd", "get_autocast_dtype", "set_autocast_dtype", "Event",
            "is_autocast_enabled(device_type)"},
    "2.5": {"OutOfMemoryError"},
    "2.6": {"accelerator", "accelerator.current_accelerator"},
}  # fmt: skip
OLD = APPEARED["2.0"]
NEWER = {name: release for release, names in APPEARED.items() for name in names if release != "2.0"}
POSITIONAL = {"is_autocast_enabled": 0, "set_autocast_enabled": 1, "random.fork_rng": 4}
"""Functions that take more arguments without a name in newer releases than in 2.0, with how many that takes."""


def dotted(node):
    if isinstance(node, ast.Attribute):
        below = dotted(node.value)
        return below and f"{below}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def guards(tree):
    """The nodes that only a release is asked for which has what they name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp) and any(
            word in ast.unparse(node.test) for word in ("hasattr(", "_OLD", "TYPE_CHECKING", "_SCALES", "_USE_DEVICE")
        ):
            found |= set(ast.walk(node))
    return found


def named(tree):
    """What a program names of torch: names, and names with the arguments that they are called with."""
    guarded = guards(tree)
    found = {}
    for node in ast.walk(tree):
        name = dotted(node) if isinstance(node, ast.Attribute) else None
        if name and name.startswith("torch."):
            found.setdefault((name[6:], ""), set()).add(node in guarded)
        if isinstance(node, ast.Call) and (name := dotted(node.func)) and name.startswith("torch."):
            for each in node.keywords:
                found.setdefault((name[6:], each.arg or "**"), set()).add(node in guarded)
            if len(node.args) > POSITIONAL.get(name[6:], 99):
                found.setdefault((name[6:], f"{len(node.args)} arguments"), set()).add(node in guarded)
    return found


def missing(name, argument):
    """Why 2.0 has no such name or argument; "" where it has."""
    full = f"{name}({argument})"
    if full in NEWER or (not argument and name in NEWER):
        return f"torch.{full if argument else name} is there since {NEWER.get(full) or NEWER[name]}"
    known = next((each for each in OLD if each.partition("(")[0] == name), None)
    if known is None:
        return f"torch.{name} is in no table: look up since which release it is there"
    taken = known.partition("(")[2].rstrip(")").split(",")
    return "" if not argument or argument in taken or argument == "**" else f"torch.{full} is in no table"


PROGRAMS = [
    pytest.param(example, id=f"{rule.code}-{number}")
    for rule in python_rules().values()
    for number, example in enumerate(rule.examples)
    if example.after is not None
]


def test_what_the_rules_write_is_in_the_oldest_release():
    """`torch.is_autocast_enabled(name)` needs 2.4, fork_rng(device_type=...) and use_device need 2.1."""
    found = {}
    for param in PROGRAMS:
        (example,) = param.values
        before, after = named(ast.parse(example.before)), named(ast.parse(example.after))
        for each in after.keys() - before.keys():
            if missing(*each):
                found[param.id] = missing(*each)
    assert len(PROGRAMS) > 100
    assert found == {}


def test_what_the_vendored_file_calls_is_in_the_oldest_release_or_guarded():
    assert OLDEST == (2, 0)
    used = named(ast.parse(text()))
    assert len(used) > 40
    found = {each: missing(*each) for each, guarded in used.items() if missing(*each) and guarded != {True}}
    assert found == {}


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("torch.is_autocast_enabled('cuda')", "torch.is_autocast_enabled"),
        ("torch.random.fork_rng([0], device_type='cuda')", "since 2.1"),
        ("torch.accelerator.current_accelerator()", "since 2.6"),
        ("torch.amp.GradScaler('cuda')", "since 2.3"),
        ("torch.something_new()", "in no table"),
    ],
)
def test_the_table_sees_what_is_newer(program, why):
    assert any(why in missing(*each) for each in named(ast.parse(program)))
