"""`torch_npu.contrib.transfer_to_npu`: programs written for CUDA on the simulated card, and what is left of CUDA there.

Holds src/toprope/compat/torch_npu/contrib/transfer_to_npu.py. The first cases are torch_npu's own tests of it
(Ascend/pytorch, test/contrib/test_transfer_to_npu.py), in our words.
"""

import json
import os
import subprocess
import sys

import pytest

from cuda_programs import DDP, HEAD, environment, run_ranks
from cuda_programs import run as run_plain
from device_stand_ins import install

pytestmark = [pytest.mark.native, pytest.mark.process]

TRANSFER = HEAD + "from torch_npu.contrib import transfer_to_npu\nimport torch, torch_npu\n"


def run(code, *, head=TRANSFER, **variables):
    return run_plain(code, head=head, **variables)


# --- one process, one card

CASES = """
import threading
from torch import nn

# generators: arguments of all forms, and isinstance
for make in ("torch.Generator('cuda')", "torch.Generator(torch.device('cuda'))", "torch.Generator(device='cuda')",
             "torch.Generator(device=torch.device('cuda'))"):
    made = eval(make)
    assert isinstance(made, torch.Generator) and made.device.type == "npu", make
assert torch.Generator().device.type == "cpu" and isinstance(torch.default_generator, torch.Generator)
assert not isinstance(1, torch.Generator)
class Seeded(torch.Generator): pass
assert isinstance(Seeded("cuda"), torch.Generator) and not isinstance(torch.Generator(), Seeded)
import copy, pickle
kept = pickle.loads(pickle.dumps(torch.Generator("cuda")))
assert type(kept) is torch.Generator and copy.deepcopy(kept).device.type == "npu"
torch.randn(2, generator=torch.Generator("cuda").manual_seed(1), device="cuda")

# events
for event in (torch.Event(device="cuda:0", enable_timing=True), torch.Event("cuda:0"), torch.cuda.Event()):
    event.record()  # one of torch.npu has no device before
    assert event.device.type == "npu" and isinstance(event, torch.Event)
assert issubclass(torch.cuda.Event, torch.Event)

# names
assert isinstance(1, (int, str)) and not isinstance(1, torch.device)
torch.cuda.device(-1)
for name in ("autocast_mode", "common", "grad_scaler", "autocast", "GradScaler"):
    assert getattr(torch.cuda.amp, name) is getattr(torch_npu.npu.amp, name), name
from torch.cuda.amp import autocast
assert autocast is torch_npu.npu.amp.autocast and not torch.cuda.amp.common.amp_definitely_not_available()
assert torch.cuda.Stream is torch.npu.Stream and torch.cuda.is_available is torch.npu.is_available
assert torch.cuda.DoubleTensor is torch.npu.FloatTensor and torch.cuda.CUDAGraph is torch.npu.NPUGraph
assert torch.cuda.default_generators == torch_npu.npu.default_generators != ()
from torch.distributed import ProcessGroupNCCL
assert torch.distributed.distributed_c10d.ProcessGroupNCCL is ProcessGroupNCCL and ProcessGroupNCCL.Options()
assert torch.distributed.is_nccl_available()
assert "cuda" not in torch.distributed.Backend.default_device_backend_map

# devices: a text, a torch.device and a number, by position and by keyword
torch.cuda.set_device(torch.device("cuda:0"))
cuda, zero = torch.device("cuda:0"), torch.cuda.current_device()
x = torch.ones(2, 3)
placed = [
    torch.randint(1, 5, (2, 3), device=cuda), x.to(zero), x.to(device=zero), x.to("cuda"), x.to(cuda, torch.float16),
    torch.tensor(1, device=zero), x.new_zeros(3, device="cuda"), x.cuda(), x.cuda(0),
    torch.zeros_like(x, device="cuda"),
    torch.as_tensor([1], device="cuda"), torch.fft.fftfreq(5, device=cuda), torch.fft.rfftfreq(5, device=cuda),
    nn.Linear(2, 2, device="cuda").weight, nn.Linear(2, 2).to("cuda:0").weight, nn.Linear(2, 2).to(0).weight,
    nn.Linear(2, 2).cuda().weight, nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
    nn.LazyLinear(2).cuda()(torch.ones(1, 3, device="cuda")), nn.LazyLinear(2).to("cuda")(x.cuda()),
    nn.LazyLinear(2).npu()(x.cuda()),
]
assert [str(each.device) for each in placed] == ["npu:0"] * len(placed)
assert all(each.is_cuda for each in placed) and not x.is_cuda and not x.to("cpu").is_cuda
assert placed[0].untyped_storage().device.type == "npu" and placed[0].storage().is_cuda
assert torch.UntypedStorage(4, device="cuda").device.type == "npu"
with torch.device("meta"):
    assert nn.Linear(32, 8).weight.device.type == "meta"
with torch.device("cuda"):
    assert torch.tensor(1).device.type == "npu"
torch.set_default_device("cuda")
assert torch.tensor(1).device.type == "npu"
torch.set_default_device(None)
assert torch.tensor(1).device.type == "cpu"
assert torch.get_device_module(device="cuda:0") is torch.get_device_module(cuda) is torch.npu
assert torch.autograd.profiler_util.Kernel("m", "cuda", 11).device == "npu"
import torch.utils.cpp_extension  # redefined when it is imported
assert torch.utils.cpp_extension.include_paths(device_type="cuda")

# torch.cuda's functions
stream = torch.cuda.Stream(device="cuda:0")
assert torch.cuda.current_stream(0) == torch.cuda.current_stream(cuda) == torch.npu.current_stream("npu:0")
assert isinstance(stream, torch.cuda.Stream) and isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
with torch.cuda.stream(stream), torch.cuda.device("cuda:0"):
    torch.ones(1, device="cuda")
assert 0 <= torch.cuda.utilization(cuda) <= 100 and torch.cuda.memory_allocated("cuda") > 0
torch.cuda.set_per_process_memory_fraction(1.0, device=cuda)
for device in (0, cuda):
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(2**20, device))
assert "|" in torch.cuda.memory_summary(device=cuda)

# mixed precision
wide = torch.randn(3, 3, device="cuda")
for context in (torch.autocast("cuda"), torch.autocast(device_type="cuda"), torch.amp.autocast("cuda"), autocast()):
    with context:
        assert (wide @ wide).dtype == torch.float16
assert (wide @ wide).dtype == torch.float32

# threads, and the thread in which backward runs
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient + torch.ones(1, device="cuda")
seen = []
thread = threading.Thread(target=lambda: seen.append(torch.ones(1).to("cuda").is_cuda))
thread.start(), thread.join()
leaf = torch.ones(1, device="cuda", requires_grad=True)
Doubled.apply(leaf).sum().backward()
assert seen == [True] and leaf.grad.item() == 2

# groups
import torch.distributed as dist
for backend in ("nccl", "cuda:nccl", "cpu:gloo,cuda:nccl"):
    dist.init_process_group(backend=backend, store=dist.HashStore(), rank=0, world_size=1, device_id=cuda)
    assert dist.get_backend_config() == {"nccl": "npu:hccl", "cuda:nccl": "npu:hccl"}.get(backend, "cpu:gloo,npu:hccl")
    assert dist.group.WORLD._get_backend(torch.device("cuda")).name() == "hccl"
    dist.barrier()
    assert dist.init_device_mesh("cuda", (1,)).device_type == dist.DeviceMesh("cuda", [0]).device_type == "npu"
    assert dist.get_backend(dist.new_group([0], backend="nccl")) == "hccl"
    dist.destroy_process_group()

# TorchScript is off
@torch.jit.script
def scripted(x):
    return x + 1
class Module(nn.Module):
    @torch.jit.script_method
    def forward(self, x):
        return x
assert type(scripted).__name__ == "function" and torch.jit.script(nn.Linear(2, 2)).__class__ is nn.Linear

# what fails on a card fails here
def fails(function, error, text):
    try:
        function()
    except error as caught:
        assert text in str(caught), caught
    else:
        raise AssertionError(text)
fails(lambda: x.cuda("cuda:0"), RuntimeError, "Invalid device")
fails(lambda: torch.load("/nobody/cuda.pt"), FileNotFoundError, "/nobody/npu.pt")
fails(lambda: torch.asarray([1], device="cuda"), RuntimeError, "not linked with support for cuda")
# and what the simulated card lacks says so
assert isinstance(torch.cuda.CUDAGraph(), torch.npu.NPUGraph)
torch.cuda.memory._record_memory_history(None, device="cuda")
fails(torch.npu.NPUPluggableAllocator, NotImplementedError, "torch.npu.NPUPluggableAllocator is not there")
print("done")
"""


def test_a_program_written_for_cuda_runs_on_the_card():
    assert run(CASES).stdout == "done\n"


def test_files_and_loaders():
    code = """
    import io
    from torch.utils.data import DataLoader, TensorDataset
    data = TensorDataset(torch.arange(50.0).view(10, 5), torch.arange(50.0).view(10, 5))
    images, _ = next(iter(DataLoader(data, num_workers=2, pin_memory=True)))
    assert images.is_pinned()
    file = io.BytesIO()
    torch.save({"x": torch.ones(2, device="cuda")}, file)
    for location in ("cuda", "cuda:0", 0, torch.device("cuda"), {"cuda:0": "cuda:0"}, {"cuda:0": "cpu"}, None):
        file.seek(0)
        assert torch.load(file, map_location=location)["x"].is_cuda == ("cpu" not in str(location)), location
    """
    run(code)


@pytest.mark.parametrize("rank", ["", "1"])
def test_the_import_says_what_it_did(rank):
    code = """
    import warnings
    warnings.resetwarnings()
    from torch_npu.contrib import transfer_to_npu
    """
    done = run(code, head=HEAD, **({"RANK": rank} if rank else {}))
    said = [line for line in done.stderr.splitlines() if "Warning: transfer_to_npu" in line]
    categories = ["RuntimeWarning"] if rank else ["ImportWarning", "RuntimeWarning"]
    assert [line.split(": ")[1] for line in said] == categories
    assert all(line.startswith("<string>:") for line in said)
    assert ("torch.Tensor.to, torch.nn.Module.to, torch.nn.Module.to_empty" in said[0]) == (not rank)
    assert "torch.jit.script" in said[-1]


def test_nothing_is_redefined_before_and_all_is_put_back_at_exit():
    code = """
    import atexit
    import torch, torch_npu
    from torch.distributed import distributed_c10d
    def state():
        found = [torch.ones, torch.Generator, torch.Event, torch.load, torch.jit.script, torch.cuda.is_available,
                 torch.cuda.amp.common, torch.nn.Module.cuda, torch.nn.Module.to, torch.Tensor.is_cuda, torch.Tensor.to,
                 torch.amp.autocast.__init__, torch.distributed.init_process_group, torch.npu.Stream.__new__,
                 vars(torch.cuda).get("__getattr__"), vars(torch.cuda).get("default_generators"),
                 distributed_c10d._new_group_with_tag, hasattr(distributed_c10d, "ProcessGroupNCCL"),
                 torch.nn.parameter.UninitializedTensorMixin._allowed_methods, "to" in vars(torch.Tensor)]
        return found
    def same():
        return [one is other for one, other in zip(before, state())]
    before = state()
    atexit.register(lambda: print(all(same()), torch.ones(2).sum().item()))
    import torch_npu.contrib.transfer_to_npu
    print(any(same()))
    """
    assert run(code, head=HEAD).stdout == "False\nTrue 2.0\n"


def test_it_needs_a_card():
    code = """
    import torch_npu
    try:
        from torch_npu.contrib import transfer_to_npu
    except ImportError as error:
        print(error)
    """
    done = run(code, head=HEAD, TOPROPE_SIM="", TOPROPE_DEVICE="cpu", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout.startswith("torch_npu.contrib.transfer_to_npu needs an NPU and there is none.")


def test_the_switch_of_torch_npu():
    code = """
    import os
    try:
        import torch_npu
    except ValueError as error:
        print(error)
    os.environ["TORCH_TRANSFER_TO_NPU"] = "1"
    import torch_npu, torch
    print(torch.ones(1, device="cuda").device)
    """
    done = run(code, head=HEAD, TORCH_TRANSFER_TO_NPU="yes")
    assert done.stdout == "TORCH_TRANSFER_TO_NPU is 'yes'; it can be 0 or 1.\nnpu:0\n"


LIBRARY = """
import torch
def seen():
    return torch.cuda.is_available()
"""


def test_functions_of_libraries_that_look_for_gpus_see_none(tmp_path):
    """Where the library is as old as torch_npu's list says, be it imported before or after."""
    names = {
        "accelerate": ("1.15.0", "utils.imports", "is_cuda_available"),
        "peft": ("0.21.2", "utils.other", "infer_device"),
        "trl": ("0.7.0", "trainer.utils", "get_kbit_device_map"),
    }  # fmt: skip
    for package, (version, module, function) in names.items():
        install(tmp_path, package, f"from .{module} import {function} as copied", version)
        folder = tmp_path / package / module.partition(".")[0]
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        text = LIBRARY + f"def {function}():\n    if not seen():\n        raise LookupError\n    return True\n"
        (folder / f"{module.partition('.')[2]}.py").write_text(text)
    code = """
    import peft, trl
    from accelerate.utils import imports
    from peft.utils import other
    from trl.trainer import utils
    def sees(function):
        try:
            return function()
        except LookupError:
            return False
    print(*map(sees, (imports.is_cuda_available, other.infer_device, utils.get_kbit_device_map)))
    print(imports.seen(), peft.copied(), torch.cuda.is_available())  # what was imported elsewhere before is as it was
    """
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(code, head=HEAD + "import accelerate\n" + TRANSFER, PYTHONPATH=path)
    assert done.stdout == "False False True\nTrue True True\n"


def test_the_profiler_of_torch_npu_where_there_is_one(tmp_path):
    code = """
    import logging, sys, types
    import torch, torch_npu
    module = types.ModuleType("torch_npu.profiler")
    module.__spec__ = torch_npu.__spec__
    class Profile:
        def __init__(self, **given):
            self.given = given
    class Config: ...
    module.profile, module._ExperimentalConfig, module.schedule = Profile, Config, print
    module.ProfilerActivity = types.SimpleNamespace(CPU="cpu of torch_npu", NPU="npu of torch_npu")
    sys.modules["torch_npu.profiler"] = torch_npu.profiler = module
    before = torch.profiler.ProfilerAction
    from torch_npu.contrib import transfer_to_npu
    assert torch.profiler.schedule is print and torch.profiler.ProfilerAction is before
    assert torch.profiler.ProfilerActivity.CUDA == "npu of torch_npu"
    assert torch.profiler.ProfilerActivity.CPU == "cpu of torch_npu" != torch.profiler.profiler.ProfilerActivity.CPU
    assert torch.profiler.profile(experimental_config=1, x=2).given == {"x": 2}
    config = Config()
    assert torch.profiler.profile(experimental_config=config).given == {"experimental_config": config}
    """
    assert "left out experimental_config" in run(code, head=HEAD).stderr


# --- two processes, two cards


def test_ddp_trains_in_a_thread():
    first, second = run_ranks(DDP, head=TRANSFER)
    assert first == second
    assert first.startswith("6.0 2.0 [")


MESH = """
import os
import torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group(backend="nccl")
mesh = dist.init_device_mesh("cuda", (2,))
assert mesh.device_type == "npu" and dist.get_backend(mesh.get_group()) == "hccl"
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
torch.manual_seed(0)
whole = FSDP(torch.nn.Linear(4, 4), device_id=torch.cuda.current_device())
whole(torch.ones(2, 4, device="cuda")).sum().backward()
parts = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)).cuda()
fully_shard(parts, mesh=mesh)
parts(torch.ones(2, 4, device="cuda")).sum().backward()
print(next(parts.parameters()).device.type, next(whole.parameters()).device)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_mesh_and_fsdp():
    assert run_ranks(MESH, head=TRANSFER) == ["npu npu:0\n", "npu npu:1\n"]


# --- under `toprope run`

PROGRAM = """
try:
    import torch_npu
    from torch_npu.contrib import transfer_to_npu
except ImportError:
    pass
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(4, 2).to(device)
model(torch.ones(3, 4).to(device)).sum().backward()
print(device, model.weight.grad.device)
"""


def run_with_toprope(folder, program, **variables):
    """What a program printed in `toprope run`, and what the report remarked."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "toprope", "run", "--chip", "910B3", "--json", "program.py"],
        cwd=folder, env=environment(TOPROPE_SIM="", **variables), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stderr.splitlines()[-1])["notes"]


def test_a_run(tmp_path):
    assert run_with_toprope(tmp_path, PROGRAM) == ("cuda npu:0\n", [])


@pytest.mark.slow
def test_a_run_with_the_switch_of_torch_npu(tmp_path):
    program = PROGRAM[PROGRAM.index("import torch\n") :]
    assert run_with_toprope(tmp_path, program, TORCH_TRANSFER_TO_NPU="1") == ("cuda npu:0\n", [])
