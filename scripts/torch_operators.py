"""Write torch_operators.toml: the operators that torch's functions, methods and layers call, recorded from torch.

    python scripts/torch_operators.py src/toprope/support/torch_operators.toml

Every entry of torch's own test tables (OpInfo, ModuleInfo) is called with its sample inputs on the CPU, without
gradients, and a dispatch mode notes the operators. An operator of every sample is one that each call needs; one of some
samples depends on the arguments. Names that torch's tables lack are called in `extras`, where more can be added.

Run by hand for a new torch. `toprope.support.torch_operators` reads the table, to say which operators a program will
need; the form is described in its head. No test runs it; tests/port/test_port_operators.py holds the table that it
wrote.
"""

from __future__ import annotations

import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._python_dispatch import TorchDispatchMode

MOST_SAMPLES = 24
# Beginnings of names that say something of a tensor, hold it, or belong to another device or library.
NO_OPERATORS = (
    "_", "as_strided", "can_cast", "cudnn_", "detach", "fbgemm_", "from_", "frombuffer", "get_device", "is_", "miopen_",
    "mkldnn_", "numel", "promote_types", "q_", "result_type", "sym_", "assert_", "boolean_dispatch", "handle_",
    "has_torch", "Identity", "Module", "Parameter", "Sequential", "Container", "DataParallel", "Lazy", "Buffer",
    "RNNBase", "RNNCellBase",
)  # fmt: skip
DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)
HEAD = """# Operators of torch that its functions, methods and layers call.
# Written by scripts/torch_operators.py; do not edit.
#
#   "linalg.inv" = "linalg_inv_ex | "      operators of every call, "|", operators of some calls, which depends on the
#                                          arguments; names without "aten::"
#
# "unrecorded" has the other names of torch that compute something.
# Recorded on the CPU, without gradients: kernels that only the backward pass needs are not here.
"""


class Recorder(TorchDispatchMode):
    """Notes the operators of ATen that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name.startswith("aten::") and not own_kernel_of_the_cpu(name.removeprefix("aten::")):
            self.seen[name.removeprefix("aten::")] = None
        return func(*args, **(kwargs or {}))


class Table:
    """The operators of each name: those of every call, and those of any."""

    def __init__(self) -> None:
        self.every: dict[str, dict[str, None]] = {}
        self.some: dict[str, dict[str, None]] = {}

    def note(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Make a call, and note what it calls under a name."""
        with Recorder() as recorder:
            try:
                function(*args, **kwargs)
            except Exception:  # a sample that needs another dtype or a build option
                return
        seen = recorder.seen
        if name in self.every:
            self.every[name] = {each: None for each in self.every[name] if each in seen}
        else:
            self.every[name] = dict(seen)
        self.some.setdefault(name, {}).update(seen)

    def row(self, name: str) -> str:
        """The operators of a name, as the file has them."""
        every = self.every[name]
        return f"{' '.join(every)} | {' '.join(each for each in self.some[name] if each not in every)}"


def own_kernel_of_the_cpu(name: str) -> bool:
    """True if only the CPU calls this operator: another device has its own in its place."""
    return name.partition(".")[0].endswith("_for_cpu") or name.startswith(("mkldnn_", "_sparse_mm_reduce_impl"))


def computing(functions: Table, methods: Table) -> Iterable[str]:
    """Names of torch that compute something and were not recorded."""
    functional = torch.nn.functional
    found = [name for name in dir(torch._C._VariableFunctions) if name.islower() and name not in methods.every]
    found += [f"fft.{name}" for name in ("fftfreq", "rfftfreq")]
    found += [
        f"nn.functional.{name}"
        for name in dir(functional)
        if name.islower() and getattr(getattr(functional, name), "__module__", "").startswith(("torch.nn.f", "torch._"))
    ]
    found += [
        f"nn.{name}"
        for name in dir(torch.nn)
        if isinstance(kind := getattr(torch.nn, name), type) and issubclass(kind, torch.nn.Module)
    ]
    for name in sorted(found):
        last = name.rpartition(".")[2]
        if name not in functions.every and not last.startswith(NO_OPERATORS) and not last.endswith("_copy"):
            yield name


Extra = tuple[str, Callable[..., Any], tuple[Any, ...]]


def extras() -> Iterable[Extra]:
    """Calls of common names that torch's test tables do not have: a name, what is called, and with what."""
    nn, functional = torch.nn, torch.nn.functional
    x, square, picture, volume = torch.rand(4, 6), torch.rand(4, 4), torch.rand(2, 4, 8, 8), torch.rand(2, 4, 8, 8, 8)
    series, sparse, theta = torch.rand(2, 4, 8), torch.eye(4).to_sparse(), torch.rand(2, 2, 3)
    indices = torch.tensor([[0, 1], [1, 2]])
    columns = functional.unfold(picture, 2)
    yield from _layers(x, series, picture, volume, columns)
    for name, given in (
        ("adaptive_avg_pool1d", (series, 2)), ("adaptive_max_pool1d", (series, 2)), ("avg_pool1d", (series, 2)),
        ("as_tensor", ([1.0],)), ("tensor", ([1.0],)), ("asarray", ([1.0],)), ("rand", (3,)), ("randperm", (3,)),
        ("bartlett_window", (8,)), ("blackman_window", (8,)), ("hamming_window", (8,)), ("hann_window", (8,)),
        ("kaiser_window", (8,)), ("poisson", (x,)), ("binomial", (x, x / 2)), ("range", (0, 3)), ("slogdet", (square,)),
        ("vander", (x[0],)), ("pdist", (x,)), ("pairwise_distance", (x, x)), ("chain_matmul", (x, x.T)),
        ("frobenius_norm", (x, 1)), ("nuclear_norm", (x,)), ("spmm", (sparse, x)),
        ("smm", (sparse, x)), ("sparse_coo_tensor", (indices, torch.ones(2), (3, 3))),
        ("affine_grid_generator", (theta, (2, 3, 4, 4), False)),
    ):  # fmt: skip
        yield name, getattr(torch, name), given
    for name, given in (
        ("fold", (columns, (8, 8), 2)), ("gumbel_softmax", (x,)), ("affine_grid", (theta, (2, 3, 4, 4))),
        ("lp_pool1d", (series, 2, 2)), ("lp_pool2d", (picture, 2, 2)), ("dropout1d", (series,)),
    ):  # fmt: skip
        yield f"nn.functional.{name}", getattr(functional, name), given
    yield "fft.fftfreq", torch.fft.fftfreq, (8,)
    yield "fft.rfftfreq", torch.fft.rfftfreq, (8,)
    yield "nn.Identity", nn.Identity(), (x,)
    definite = square @ square.T + torch.eye(4)
    for name in ("inverse", "det", "slogdet", "logdet", "pinverse", "cholesky", "svd", "qr"):
        yield f".{name}", getattr(torch.Tensor, name), (definite,)


def _layers(
    x: torch.Tensor, series: torch.Tensor, picture: torch.Tensor, volume: torch.Tensor, columns: torch.Tensor
) -> Iterable[Extra]:
    nn, functional = torch.nn, torch.nn.functional
    for name, given, forward in (
        ("Dropout", (0.5,), (x,)), ("Dropout1d", (0.5,), (series,)), ("Dropout2d", (0.5,), (picture,)),
        ("Dropout3d", (0.5,), (volume,)), ("AlphaDropout", (0.5,), (x,)), ("FeatureAlphaDropout", (0.5,), (picture,)),
        ("CosineSimilarity", (), (x, x)), ("PairwiseDistance", (), (x, x)), ("TripletMarginLoss", (), (x, x, x)),
        ("EmbeddingBag", (5, 3), (torch.tensor([[0, 1], [1, 2]]),)), ("Flatten", (), (picture,)),
        ("Unflatten", (1, (2, 3)), (x,)), ("Fold", ((8, 8), 2), (columns,)), ("Unfold", (2,), (picture,)),
        ("FractionalMaxPool2d", (2, 4), (picture,)), ("FractionalMaxPool3d", (2, 4), (volume,)),
        ("Hardsigmoid", (), (x,)), ("RReLU", (), (x,)), ("PixelShuffle", (2,), (picture,)),
        ("PixelUnshuffle", (2,), (picture,)), ("ChannelShuffle", (2,), (picture,)),
        ("UpsamplingBilinear2d", (4,), (picture,)), ("UpsamplingNearest2d", (4,), (picture,)),
        ("MaxUnpool1d", (2,), functional.max_pool1d(series, 2, return_indices=True)),
        ("MaxUnpool2d", (2,), functional.max_pool2d(picture, 2, return_indices=True)),
        ("MaxUnpool3d", (2,), functional.max_pool3d(volume, 2, return_indices=True)),
    ):  # fmt: skip
        yield f"nn.{name}", getattr(nn, name)(*given), forward


def names(info: Any) -> Iterable[str]:
    """The names of a function below torch: its own and its aliases."""
    yield info.name
    for alias in info.aliases:
        yield alias.name


def samples(info: Any) -> Iterable[Any]:
    """Sample inputs of the first dtype that the function takes."""
    dtype = next((each for each in DTYPES if each in info.dtypes), None)
    if dtype is None:
        return
    yield from islice(info.sample_inputs("cpu", dtype, requires_grad=False), MOST_SAMPLES)


def function(info: Any, functions: Table, methods: Table) -> None:
    """Record one entry of torch's table of functions."""
    for sample in samples(info):
        args, kwargs = sample.args, sample.kwargs
        for name in names(info):
            functions.note(name.removeprefix("torch."), info.op, sample.input, *args, **kwargs)
        method, inplace = info.method_variant, info.inplace_variant
        if method is not None:
            methods.note(method.__name__, method, sample.input, *args, **kwargs)
        if hasattr(inplace, "__name__") and isinstance(sample.input, torch.Tensor):
            methods.note(inplace.__name__, inplace, sample.input.clone(), *args, **kwargs)


def layer(info: Any, functions: Table) -> None:
    """Record one entry of torch's table of layers."""
    name = info.name.replace("_", ".", 1) if info.name.startswith("nn_") else info.name
    for each in info.module_inputs_func(info, "cpu", torch.float32, False, True):
        given, forward = each.constructor_input, each.forward_input
        if forward is not None:
            module = info.module_cls(*given.args, **given.kwargs)
            functions.note(name, module, *forward.args, **forward.kwargs)


def limited(seconds: int, what: str, call: Callable[..., None], *args: Any) -> None:
    """Make a call that may not take longer."""
    signal.alarm(seconds)
    try:
        call(*args)
    except Exception as error:
        sys.stderr.write(f"{what}: {error}\n")
    finally:
        signal.alarm(0)


def main(path: Path) -> None:
    """Write the file."""

    def late(*_: object) -> None:
        raise TimeoutError("took too long")

    signal.signal(signal.SIGALRM, late)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    functions, methods = Table(), Table()
    for info in op_db:
        limited(60, info.name, function, info, functions, methods)
    for info in module_db:
        limited(60, info.name, layer, info, functions)
    for name, call, given in extras():
        (methods if name.startswith(".") else functions).note(name.removeprefix("."), call, *given)
    lines = [HEAD, f'torch = "{torch.__version__.partition("+")[0]}"', 'unrecorded = """']
    lines += [*textwrap.wrap(" ".join(computing(functions, methods)), 118), '"""']
    for title, table in (("functions", functions), ("methods", methods)):
        lines += ["", f"[{title}]"]
        kept = [name for name in sorted(table.every) if not name.startswith(("_", "ops.")) and table.some[name]]
        lines += [f'"{name}" = "{table.row(name)}"' for name in kept]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
