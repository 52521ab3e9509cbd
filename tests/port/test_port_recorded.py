"""The rules' own examples on a CUDA that records its calls: call by call the same before and after the port.

What an example does not define (`model`, `x`) is an object on "cuda:0" that takes any call and records it, and so is
what torch's functions make where they are given a device. An example that this torch, which has no CUDA, ends with an
error is compared as far as it went.
"""

import ast
import builtins
import importlib.util
import json
import os
import pathlib
import sys
import types
from unittest import mock

import pytest
import torch
from torch.overrides import TorchFunctionMode

from toprope.port.engine import port
from toprope.port.registry import python_rules

TEXT = pathlib.Path(__file__).resolve().parents[2] / "src" / "toprope" / "device" / "_portable_runtime.py"
NAME = "portable_under_test"
EXAMPLES = [
    pytest.param(example.before, id=f"{rule.code}-{number}")
    for rule in python_rules().values()
    for number, example in enumerate(rule.examples)
    if example.after is not None
]
KINDS = {
    "is_available": True, "device_count": 4, "current_device": 2, "get_device_name": "A", "is_bf16_supported": True,
    "get_device_capability": (9, 0), "memory_allocated": 7, "max_memory_allocated": 8, "memory_reserved": 9,
    "max_memory_reserved": 9, "mem_get_info": (1, 2), "is_initialized": True, "initial_seed": 3,
    "memory_stats": {}, "memory_summary": "", "get_rng_state_all": [],
}  # fmt: skip
SAME = {
    "reset_max_memory_allocated": "reset_peak_memory_stats", "reset_max_memory_cached": "reset_peak_memory_stats",
    "memory_cached": "memory_reserved", "max_memory_cached": "max_memory_reserved",
}  # fmt: skip
"""Older names of torch.cuda for the same."""
NOT_ASKED = {"is_available", "current_device", "device_count", "_lazy_init", "is_initialized", "_is_compiled"}
"""Questions without an effect: the runtime may ask them once more, or once less."""


@pytest.fixture(autouse=True)
def _torch_as_it_was():
    """What examples set for the whole process, such as the device of what is made, would be there for other tests."""
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    cudnn, cuda, state = torch.backends.cudnn, torch.backends.cuda, torch.get_rng_state()
    flags = cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, cuda.matmul.allow_tf32
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, cuda.matmul.allow_tf32 = flags
    torch.set_rng_state(state)


def runtime():
    """The runtime, loaded once more: it chooses its device at its first question."""
    spec = importlib.util.spec_from_file_location(NAME, TEXT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(value):
    """A value as the log has it: devices as texts with the current one in place of none, objects by their kind."""
    if isinstance(value, torch.device):
        return f"{value.type}:{value.index}" if value.index is not None else value.type
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return value
    if isinstance(value, Thing):
        return value._name
    if isinstance(value, (list, tuple, set)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (str, int, float, bool, torch.dtype, type(None))):
        return str(value)
    return type(value).__name__


def place(value):
    """What is given as a device, or a table of them, to a function that is not torch's: a number is a GPU."""
    if isinstance(value, dict):
        return {key: place(each) for key, each in value.items()}
    return f"cuda:{value}" if type(value) is int else plain(value)


def target(given, keywords):
    """The device that `to` or `cuda` is asked for, as text; None where it is none."""
    for each in [*given, keywords.get("device"), keywords.get("other")]:
        if isinstance(each, Thing):
            return plain(each.device)
        if isinstance(each, (str, torch.device)):
            return plain(torch.device(each))
        if isinstance(each, int) and not isinstance(each, bool):
            return f"cuda:{each}"
    return None


class Thing:
    """Takes any call; moving it to a device is one thing, whatever method is called for it."""

    def __init__(self, log, name):
        self.__dict__.update(_log=log, _name=name)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "get_device":
            return lambda: 0
        if name in ("is_cuda", "device"):
            return True if name == "is_cuda" else torch.device("cuda:0")
        return Thing(self._log, f"{self._name}.{name}")

    def __setattr__(self, name, value):
        self._log.append((f"{self._name}.{name} =", plain(value)))
        self.__dict__[name] = value

    def __call__(self, *given, **named):
        base, _, last = self._name.rpartition(".")
        typed = last == "type" and any("Tensor" in str(each) for each in given)
        if base and (last in ("cuda", "to") or typed):
            where = None if typed else target(given, named) or ("cuda" if last == "cuda" else None)
            self._log.append(("move", base, where))
            last = "to"
        else:
            located = named.pop("map_location", None) if "map_location" in named else None
            said = {key: place(each) if "device" in key else plain(each) for key, each in sorted(named.items())}
            self._log.append((self._name, [plain(each) for each in given], said, places(located)))
        return Thing(self._log, base if last in ("cuda", "to") else f"{self._name}()")

    def __iter__(self):
        return iter([Thing(self._log, f"{self._name}[0]")])

    def __getitem__(self, key):
        return Thing(self._log, f"{self._name}[{plain(key)}]")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def __index__(self):
        return 1

    def __str__(self):
        return self._name

    def __bool__(self):
        return True

    def __len__(self):
        return 2


def places(location):
    """Where torch.load puts what was saved on the first GPU, the second one and the CPU."""
    if callable(location):

        class Storage:
            def cuda(self, index=None):
                return "cuda" if index is None else f"cuda:{index}"

        found = [location(Storage(), each) for each in ("cuda:0", "cuda:1", "cpu")]
        return [each if isinstance(each, str) else saved
                for each, saved in zip(found, ("cuda:0", "cuda:1", "cpu"), strict=True)]  # fmt: skip
    if isinstance(location, dict):
        return [plain(location.get(each, each)) for each in ("cuda:0", "cuda:1", "cpu")]
    if location is None:
        return ["cuda:0", "cuda:1", "cpu"]
    return [plain(torch.device(location))] * 3


class Record(TorchFunctionMode):
    """Records moves and what is made on CUDA; a move makes a tensor there."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_function__(self, function, types_, given=(), named=None):
        named = dict(named or {})
        name = getattr(function, "__name__", "")
        if named.get("device") is None or name == "_has_compatible_shallow_copy_type":
            return function(*given, **named)
        where = named.pop("device")
        self.log.append((name, target([where], {}), [plain(each) for each in given], plain(named)))
        return Thing(self.log, name)


class World:
    """One run of a program: what it does to CUDA is in `log`."""

    def __init__(self):
        self.log = []

    def recorder(self, name, answer=None):
        def call(*given, **named):
            if name not in NOT_ASKED:
                said = [plain(each) for each in (*given, *named.values()) if each not in (None, False, "cuda")]
                self.log.append((f"torch.cuda.{SAME.get(name, name)}", said))
            return Thing(self.log, name) if name.endswith("_stream") else answer

        return call

    def cuda(self):
        """Everything that torch.cuda does, recorded."""
        names = {}
        for name in dir(torch.cuda):
            if name in KINDS or (
                isinstance(getattr(torch.cuda, name), types.FunctionType) and not name.startswith("_")
            ):
                names[name] = self.recorder(name, KINDS.get(name))
        names["_lazy_init"] = self.recorder("_lazy_init")
        names["device"] = lambda index: Thing(self.log, f"torch.cuda.device({plain(index)})")
        for name in ("Stream", "Event"):
            names[name] = type(name, (), {
                "__init__": lambda own, *given, _name=name, **named: self.log.append(
                    (_name, [plain(each) for each in (*given, *named.values()) if each is not None])),
                "__getattr__": lambda own, each: Thing(self.log, each),
            })  # fmt: skip
        return mock.patch.multiple("torch.cuda", **names)

    def names(self, text):
        """Objects for the names that a program does not define."""
        nodes = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Name)]
        found = {each.id: Thing(self.log, each.id) for each in nodes if not hasattr(builtins, each.id)}
        return {
            **found,
            "__name__": "program",
            "rank": 1,
            "local_rank": 1,
            "torch": torch,
            "device": torch.device("cuda:0"),
        }


def run(text, module):
    """The log of a run, and the kind of the error that ended it."""
    world = World()
    error = ""

    def load(path, map_location=None, **named):
        world.log.append(("torch.load", places(map_location)))
        return Thing(world.log, "loaded")

    modules, argv = mock.patch.dict(sys.modules, {NAME: module}), mock.patch.object(sys, "argv", ["program"])
    with modules, argv, mock.patch.dict(os.environ), world.cuda(), mock.patch("torch.load", load), Record(world.log):
        try:
            exec(compile(text, "<program>", "exec"), world.names(text))
        except (
            Exception
        ) as raised:  # a name that the example leaves out, or an object that is not there: the same twice
            error = f"{type(raised).__name__}"
    return [json.dumps(each, default=str, sort_keys=True) for each in world.log], error


OTHERWISE = {
    "TR078-0": "flash_attn is not installed here",
    "TR090-1": "the profiler is started by another function of torch.cuda",
    "TR091a-0": "the column has another name in this torch, on CUDA too",
}
"""Examples that do something else on CUDA, as their rules say."""


@pytest.mark.parametrize("before", [each for each in EXAMPLES if each.id not in OTHERWISE])
def test_the_examples_do_the_same_on_cuda(before, monkeypatch):
    monkeypatch.setenv("TOPROPE_DEVICE", "cuda")
    after = port(before.encode(), runtime=NAME).after.decode()
    first, error = run(before, None)
    second, other = run(after, runtime())
    if error:
        second = second[: len(first)]
    assert second == first
    assert error or not other, other


def test_most_examples_are_compared_to_their_end(monkeypatch):
    monkeypatch.setenv("TOPROPE_DEVICE", "cuda")
    ends = [run(each.values[0], None) for each in EXAMPLES]
    assert sum(not error for _, error in ends) > 95
    assert sum(bool(log) for log, _ in ends) > 50
    assert {each.id for each in EXAMPLES} > OTHERWISE.keys()


def test_what_an_example_sets_is_not_left_to_other_tests():
    assert torch.ones(1).device.type == "cpu"
    assert torch.get_default_dtype() == torch.float32
