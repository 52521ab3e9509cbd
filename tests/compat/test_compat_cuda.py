"""A program written for CUDA on another device: `toprope run --from cuda` and `--trace-cuda`.

Holds src/toprope/compat/cuda.py, cuda_patches.py and cuda_sites.py; programs run in processes of their own.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import forkserver
from cuda_programs import DDP, HEAD, run_ranks
from cuda_programs import environment as environment_of_card
from cuda_programs import run as run_on_card

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).resolve().parents[1] / "helpers" / "programs" / "written_for_cuda.py"


def run(*options, program=PROGRAM, status=0):
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "run", *options, str(program)], capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture(scope="module")
def on_the_card():
    return run("--device", "sim", "--from", "cuda")


@pytest.mark.slow
def test_the_program_takes_the_card_for_cuda(on_the_card):
    told = json.loads(on_the_card.stdout)
    weights = told.pop("weights")
    assert told == {
        "seen": [True, "cuda", "cuda:0", "cuda"],
        "generator": [True, [2]],
        "class": ["torch.float32", True],
        "loaded": "cuda",
        "memory": True,
    }
    plain = json.loads(run("--device", "cpu", "--from", "cuda", "--quiet").stdout)
    assert plain["seen"] == [False, "cpu", "cpu", "cpu"]
    assert weights == pytest.approx(plain["weights"], abs=1e-2)


@pytest.mark.slow
def test_the_report_says_that_torch_was_redefined(on_the_card):
    assert "torch.cuda was redefined in the program's processes" in on_the_card.stderr


@pytest.mark.slow
def test_a_trace_lists_what_reached_torch_with_the_place(tmp_path):
    file = tmp_path / "trace.json"
    run("--device", "cpu", "--quiet", "--trace-cuda", str(file))
    sites = json.loads(file.read_text())["sites"]
    seen = {(each["text"].removeprefix("torch."), each["stack"][0]["line"]) for each in sites}
    wanted = set()
    for number, line in enumerate(PROGRAM.read_text().splitlines(), 1):
        if "# SITE " in line:
            wanted.add((line.rpartition("# SITE ")[2].removeprefix("torch."), number))
    assert wanted <= seen
    assert all(each["stack"][0]["file"] == str(PROGRAM) for each in sites)
    assert not any("manual_seed" in each["text"] for each in sites)  # torch's own: the program called torch.manual_seed


def test_all_is_undone(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import torch
from pathlib import Path
from toprope.compat import cuda
def state():
    names = "is_available", "memory_allocated", "FloatTensor", "Stream"
    return [getattr(torch.cuda, name) for name in names] + [
        torch.Generator, torch.load, torch.autocast.__init__, torch.cuda.amp.autocast, torch.Tensor.to, torch.ones]
before = state()
undo = cuda.install(Path("."))
assert not any(one is other for one, other in zip(before, state()))
undo()
assert all(one is other for one, other in zip(before, state()))
try:
    torch.ones(1, device="cuda")
except (AssertionError, RuntimeError):
    print("as it was")
""")
    variables = environment_of_card(TOPROPE_SIM="", TOPROPE_DEVICE="cpu", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    done = forkserver.run([sys.executable, str(program)], cwd=tmp_path, timeout=120, env=variables)
    assert done.stdout == "as it was\n", done.stderr


ON_THE_CARD = """
import threading
import torch.distributed as dist

# classes
stream, event = torch.cuda.Stream(device="cuda:0"), torch.cuda.Event(enable_timing=True)
class MyStream(torch.cuda.Stream): pass
class MyEvent(torch.cuda.Event): pass
assert isinstance(torch.cuda.Stream, type) and isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
assert isinstance(MyStream(), torch.cuda.Stream) and not isinstance(stream, MyStream)
assert isinstance(MyEvent(), torch.cuda.Event) and not isinstance(event, torch.cuda.Stream)

# threads, and the thread in which backward runs
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient + torch.ones(1, device="cuda")
seen = []
def work():
    x = torch.ones(1).to("cuda")
    seen.append((str(x.device), x.is_cuda, torch.ones(1).cuda().is_cuda))
thread = threading.Thread(target=work)
thread.start(), thread.join()
leaf = torch.ones(1, device="cuda", requires_grad=True)
Doubled.apply(leaf).sum().backward()
assert seen == [("cuda:0", True, True)] and leaf.grad.item() == 2

# groups with every text of a backend, and DistributedDataParallel
for backend in ("nccl", "cuda:nccl", "cpu:gloo,cuda:nccl"):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[0])
    model(torch.ones(1, 2).cuda()).sum().backward()
    assert model.module.weight.grad.is_cuda and dist.init_device_mesh("cuda", (1,)).device_type == "npu"
    dist.destroy_process_group()

# what else takes a device
for scaler in (torch.amp.GradScaler("cuda"), torch.amp.GradScaler(), torch.cuda.amp.GradScaler()):
    assert scaler.is_enabled()
wide = torch.ones(2, 2, device=0)
with torch.autocast("cuda"):
    assert (wide @ wide).dtype == torch.float16
assert torch.ones(2).to(0).is_cuda and torch.asarray([1], device="cuda").is_cuda
assert torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda())(torch.ones(4, 2).cuda()).is_cuda
print("done")
"""
FROM_CUDA = HEAD + "import torch\nfrom toprope.compat import cuda\ncuda.install()\n"


def test_classes_threads_and_groups():
    assert run_on_card(ON_THE_CARD, head=FROM_CUDA).stdout == "done\n"


def test_ddp_trains_in_a_thread():
    first, second = run_ranks(DDP, head=FROM_CUDA)
    assert first == second
    assert first.startswith("6.0 2.0 [")


COMPILED = """
@torch.jit.script
def scripted(x):
    return x + torch.ones(2, 3) + torch.zeros([3])
assert scripted(torch.ones(2, 3)).sum() == 12
compiled = torch.compile(lambda x: (x + torch.ones(2, device="cuda")).to("cuda"), backend="eager", fullgraph=True)
print(compiled(torch.ones(2, device="cuda")).tolist())
"""


@pytest.mark.slow
def test_torchscript_and_compiled_functions(tmp_path):
    (tmp_path / "program.py").write_text(FROM_CUDA + COMPILED)
    done = forkserver.run([sys.executable, str(tmp_path / "program.py")], timeout=120, env=environment_of_card())
    assert done.stdout == "[2.0, 2.0]\n", done.stderr


# The same card by another name: torch.cuda has its own functions, which are noted and go on working.
ON_CUDA = """
import json
import pathlib
import torch
from toprope.compat import cuda, cuda_sites
from toprope.device import _portable_runtime
_portable_runtime._device = torch.device("cuda")
undo = cuda.install(pathlib.Path("."))
torch.cuda.memory_allocated()
for act in (torch.cuda.Stream, torch.ones(1).cuda, lambda: torch.ones(1, device="cuda")):
    try:
        act()
    except Exception as error:  # there is no CUDA here
        assert not isinstance(error, RecursionError), error
undo()
print(json.dumps(sorted(site["text"] for site in cuda_sites.merge(pathlib.Path("."))["sites"])))
"""


def test_on_cuda_itself_a_trace_calls_torchs_own_functions(tmp_path):
    (tmp_path / "program.py").write_text(ON_CUDA)
    variables = environment_of_card(TOPROPE_SIM="", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    done = forkserver.run([sys.executable, "program.py"], cwd=tmp_path, timeout=120, env=variables)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["cuda", "torch.Tensor.cuda", "torch.cuda.Stream", "torch.cuda.memory_allocated"]


@pytest.mark.slow
def test_another_origin_is_refused():
    done = run("--from", "rocm", status=2)
    assert "--from rocm is not known" in done.stderr
