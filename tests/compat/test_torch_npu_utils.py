"""`torch_npu.utils`, `torch_npu._C` and the modules without code, on the simulated card.

Holds src/toprope/compat/torch_npu/utils and src/toprope/compat/torch_npu/_C against torch_npu's documented behaviour.
"""

import pytest

from torch_npu_programs import outcomes

pytestmark = [pytest.mark.native, pytest.mark.process]

# The first one begins before a card is used; the last one replaces os.getenv.
CASES = {
    "names of the compiled part": """
from torch_npu import _C

assert _C._npu_getLocalDevice() == -1 and not _C._npu_hasPrimaryContext(0)
assert _C._npu_get_soc_version() == torch.npu.get_soc_version() == 223
assert _C._npu_getDeviceCount() == 1 and _C._npu_getDevice() == _C._npu_getLocalDevice() == 0
assert _C._npu_getDefaultStream(0) == (0, 0, _C._npu_getCurrentStream(0)[2])
kept = torch.ones(1, device="npu")
assert _C._npu_hasPrimaryContext(0)
stream = torch.npu.Stream()
with torch.npu.stream(stream):
    assert _C._npu_getCurrentStream(0)[0] == stream.stream_id
    assert _C._npu_getCurrentRawStream(0) == stream.npu_stream == _C._npu_getCurrentRawStreamNoWait(0)
made = _C._empty_strided_npu((2, 3), (4, 1), torch.half)
assert made.stride() == (4, 1) and made.dtype == torch.half and made.device.type == "npu"
base = torch.arange(12.0, device="npu")
view = base.view(3, 4)[1:, ::2]
weak = _C._weak_ref_tensor(view)
assert torch.equal(weak, view) and weak.data_ptr() == view.data_ptr()
assert weak.stride() == view.stride() and weak.storage_offset() == 4
assert _C._npu_isHistoryEnabled() is False and _C._get_cann_version("CANN") == ""
refused(AttributeError, "does not have torch_npu._C._npu_eraseStream", getattr, _C, "_npu_eraseStream")
""",
    "combined tensors": """
from torch_npu.utils import npu_combine_tensors, get_part_combined_tensor, is_combined_tensor_valid

x = torch.randn(2, 3, device="npu", dtype=torch.bfloat16)
y = torch.nn.Parameter(torch.randn(4, device="npu", dtype=torch.bfloat16))
kept = x.clone(), y.detach().clone()
whole = npu_combine_tensors([x, y])
assert whole.shape == (10,) and whole.dtype == torch.bfloat16
assert torch.equal(x, kept[0]) and torch.equal(y, kept[1]) and y.requires_grad and y.is_leaf
assert torch.equal(whole, torch.cat([kept[0].flatten(), kept[1]]))
assert x.data_ptr() == whole.data_ptr() and y.data_ptr() - x.data_ptr() == 12
assert torch_npu.get_storage_size(x) == 6 and torch_npu.get_storage_size(whole) == 10
whole.fill_(2)
assert float(x.float().sum() + y.detach().float().sum()) == 20
y.sum().backward()
assert y.grad.device.type == "npu"

part = get_part_combined_tensor(whole, 5, 2)
part.zero_()
assert whole.tolist() == [2.0] * 5 + [0.0] * 2 + [2.0] * 3
assert is_combined_tensor_valid(whole, [x, y, part]) and is_combined_tensor_valid(None, [])
for invalid in ([x.t()], [None], [torch.ones(2, device="npu")]):
    assert not is_combined_tensor_valid(whole, invalid)
assert not is_combined_tensor_valid(None, [x])
del whole
torch.npu.empty_cache()
assert float(x.float().sum()) == 10.0  # 2 in each but one: the memory lives on

zeros = torch.ones(3, device="npu")
assert npu_combine_tensors([zeros], require_copy_value=False).tolist() == zeros.tolist() == [0.0] * 3
assert npu_combine_tensors([]) is None and get_part_combined_tensor(None, 0, 1) is None
refused(RuntimeError, "ERR00001 PTA", npu_combine_tensors, [zeros, None])
refused(RuntimeError, "ERR00002 PTA", npu_combine_tensors, [zeros, zeros.half()])
refused(RuntimeError, "must be on NPU, got cpu", npu_combine_tensors, [torch.ones(2)])
refused(RuntimeError, "contiguous", npu_combine_tensors, [torch.ones(2, 3, device="npu").t()])
refused(RuntimeError, "(index + size) (5) > ", get_part_combined_tensor, zeros, 2, 3)
change = torch_npu.npu_change_data_ptr
refused(RuntimeError, "Offsets overflow", change, torch.ones(2, device="npu"), zeros, 2)
refused(RuntimeError, "below 0", change, torch.ones(1, device="npu"), zeros, -1)
refused(RuntimeError, "float16, bfloat16 or float32", change, zeros.int(), zeros.int(), 0)
# A storage that was shrunk is smaller than its tensor, and stays so when it moves.
shrunk, wide = torch.arange(4.0, device="npu"), torch.zeros(8, device="npu")
shrunk.untyped_storage().resize_(8)
change(shrunk, wide, 2)
assert torch_npu.get_storage_size(shrunk) == 2 and shrunk.data_ptr() == wide.data_ptr() + 8
assert shrunk.fill_(3).shape == (4,) and wide.tolist() == [0, 0, 3, 3, 3, 3, 0, 0]
""",
    "flops are counted": """
from torch_npu.utils import FlopsCounter

x, weight = torch.randn(3, 4, device="npu"), torch.randn(4, 5, device="npu", requires_grad=True)
counter = FlopsCounter()
assert counter.get_flops() == [0, 0]
x @ weight
counter.start()
out = x @ weight
assert counter.get_flops() == [120, 120]
counter.pause()
torch.randn(2, 2) @ torch.randn(2, 2)  # not on the card
out.sum().backward()
assert counter.get_flops() == [120, 240]
counter.resume()
torch.bmm(x[None], weight.detach()[None])
assert FlopsCounter().get_flops() == [240, 360]
counter.stop()
assert counter.get_flops() == [0, 0]
x @ weight
with FlopsCounter() as counter:
    x @ weight
    assert counter.get_flops() == [120, 120]
""",
    "cores of a thread": """
import os
from torch_npu.utils import reset_thread_affinity, set_thread_affinity

start = os.sched_getaffinity(0)
core = min(start)
for text, bound in ((None, start), ("", start), ("0", start), ("1", {core}), ("mode:2,force:1", {core})):
    if text is not None:
        os.environ["CPU_AFFINITY_CONF"] = text
    set_thread_affinity([core, core])
    assert os.sched_getaffinity(0) == bound
    reset_thread_affinity()
    assert os.sched_getaffinity(0) == start
    set_thread_affinity([[core, core], [10**6, 10**6 + 1]])
    assert os.sched_getaffinity(0) == bound
    set_thread_affinity()
    assert os.sched_getaffinity(0) == start
for wrong in ([1, 2, 3], [], [[0]], "0-3", [0.5, 1]):
    refused(ValueError, "ERR00001 PTA invalid parameter", set_thread_affinity, wrong)
for wrong in ([-1, 5], [3, 2], [[0, 1], [2, -3]]):
    refused(ValueError, "ERR00003 PTA invalid value", set_thread_affinity, wrong)
torch_npu._C._npu_set_thread_affinity(core, core)  # the variable is set
assert os.sched_getaffinity(0) == {core}
torch_npu._C._npu_set_thread_affinity(-1, -1)
assert os.sched_getaffinity(0) == start
refused(RuntimeError, "two integers", torch_npu._C._npu_set_thread_affinity, 1)
""",
    "saving in the background": """
import os, tempfile, threading
from torch_npu.utils import save_async

folder = tempfile.mkdtemp()
def wait():
    for thread in threading.enumerate():
        if thread.name == "save_async":
            thread.join(60)

tensor = torch.randn(1000, device="npu")
save_async({"first": tensor, "view": tensor[:3], "on the CPU": torch.ones(2), "n": 1}, f"{folder}/a.pt")
wait()
read = torch.load(f"{folder}/a.pt")
assert read["first"].device == tensor.device and torch.equal(read["first"], tensor)
assert read["view"].untyped_storage().data_ptr() == read["first"].untyped_storage().data_ptr()
assert read["on the CPU"].tolist() == [1, 1] and read["n"] == 1

# with `model`, the next step cannot overtake the copy
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)).npu()
optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 64, device="npu")).sum().backward()
    optimizer.step()
    kept = {name: value.cpu() for name, value in model.state_dict().items()}
    save_async(model, f"{folder}/{step}.pt", model=model)
    optimizer.zero_grad()
    model(torch.ones(2, 64, device="npu")).sum().backward()
    optimizer.step()
    wait()
    saved = torch.load(f"{folder}/{step}.pt", weights_only=False)
    assert not saved._backward_hooks and len(model._backward_hooks) == 1
    for name, value in saved.state_dict().items():
        assert torch.equal(value.cpu(), kept[name]), (step, name)

refused(RuntimeError, "ERR00001", save_async, tensor, "x", _use_new_zipfile_serialization=False)
views = tensor.untyped_storage(), tensor
refused(RuntimeError, "as different types", save_async, views, f"{folder}/x.pt")
refused(Exception, "pickle", save_async, lambda: 1, f"{folder}/x.pt")
assert not os.path.exists(f"{folder}/x.pt")
""",
    "error codes": """
import os, re
from torch_npu.utils._error_code import ErrCode, dist_error, graph_error, ops_error, prof_error, pta_error

pattern = r"\\n\\[ERROR\\] [\\d:-]+ \\(PID:(\\d+), Device:(-?\\d+), RankID:-1\\) (.*)"
found = re.fullmatch(pattern, ops_error(ErrCode.MEMORY))
assert (int(found[1]), found[2], found[3]) == (os.getpid(), "0", "ERR01006 OPS memory error")
ends = [made(ErrCode.HCCL).partition(") ")[2] for made in (pta_error, dist_error, graph_error, prof_error)]
assert ends == [f"ERR0{n}200 {part} call hccl api failed" for n, part in
                ((0, "PTA"), (2, "DIST"), (3, "GRAPH"), (4, "PROF"))]
assert (ErrCode.TYPE.code, ErrCode.TYPE.msg) == (2, "invalid type")
os.environ["TORCH_NPU_COMPACT_ERROR_OUTPUT"] = "1"
assert pta_error(ErrCode.PARAM) == ""
del os.environ["TORCH_NPU_COMPACT_ERROR_OUTPUT"]
""",
    "paths": """
import os, tempfile, warnings
from torch_npu.utils._path_manager import PathManager

folder = tempfile.mkdtemp()
PathManager.make_dir_safety(f"{folder}/a/b")
PathManager.make_dir_safety(f"{folder}/a/b")
PathManager.create_file_safety(f"{folder}/a/f")
assert os.stat(f"{folder}/a/b").st_mode & 0o777 == 0o750
assert os.stat(f"{folder}/a/f").st_mode & 0o777 == 0o640
os.symlink(f"{folder}/a", f"{folder}/link")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    PathManager.check_directory_path_readable(f"{folder}/a")
    PathManager.check_input_file_path(f"{folder}/a/f")
    assert not caught
    PathManager.check_directory_path_writeable(f"{folder}/link")
    PathManager.check_input_directory_path("a|b")
    PathManager.check_input_directory_path("a" * 256)
texts = [str(each.message).partition(":")[0] for each in caught]
assert texts == ["The path is a symbolic link", "The path has characters that are not allowed",
                "The path is longer than allowed"]
refused(RuntimeError, "ERR00001", PathManager.check_input_directory_path, f"{folder}/a/f")
refused(RuntimeError, "ERR00001", PathManager.check_input_file_path, f"{folder}/a")
refused(RuntimeError, "does not exist", PathManager.check_directory_path_readable, f"{folder}/c")
refused(RuntimeError, "ERR00010", PathManager.remove_file_safety, f"{folder}/a")
refused(RuntimeError, "ERR00010", PathManager.create_file_safety, f"{folder}/c/f")
PathManager.remove_file_safety(f"{folder}/a/f")
PathManager.remove_path_safety(f"{folder}/a")
PathManager.remove_path_safety(f"{folder}/a")
assert os.listdir(folder) == ["link"]
""",
    "versions and modules without code": """
import os, tempfile
folder = tempfile.mkdtemp()
with open(folder + "/ascend_toolkit_install.info", "w") as file:
    file.write("package_name=Ascend\\nversion=8.5.0\\n")
import torch_npu.version, torch_npu.dynamo, torch_npu.utils.cpp_extension as cpp_extension
from torch_npu.utils import collect_env
from torch_npu.npu.utils import _is_gte_cann_version

assert torch_npu.__version__ == torch_npu.version.__version__ == torch.__version__.partition("+")[0]
assert torch_npu.utils.get_cann_version() == torch_npu.utils.get_cann_version("DRIVER") == ""
assert _is_gte_cann_version("8.3.RC1") is torch_npu._C._is_gte_cann_version("9.1.0", "CANN") is False
refused(RuntimeError, "8.1.RC1", _is_gte_cann_version, "7.0.0")
refused(RuntimeError, "DRIVER", _is_gte_cann_version, "25.0.0", "DRIVER")
os.environ["ASCEND_HOME_PATH"] = folder
assert collect_env.get_cann_version() == "8.5.0"
os.remove(folder + "/ascend_toolkit_install.info")
assert collect_env.get_cann_version() == "not known"
info = collect_env.SystemEnv(**{name: "x" for name in collect_env.SystemEnv._fields} | {
    "pip_packages": "numpy==1\\ntorch==2", "conda_packages": "", "gcc_version": None, "pip_version": "pip3",
    "is_xnnpack_available": True, "cann_version": "not known"})
text = collect_env.pretty_str(info)
for line in ("PyTorch version: x", "Torch-npu version: x", "GCC version: Could not collect",
             "Is XNNPACK available: Yes", "CANN:", "not known", "[pip3] torch==2",
             "[conda] No relevant packages"):
    assert line in text.splitlines(), line

assert cpp_extension.TorchExtension is torch.utils.cpp_extension
refused(NotImplementedError, "'ext' needs the headers", cpp_extension.NpuExtension, "ext", ["a.cpp"])
assert "_inductor" not in vars(torch_npu)
refused(AttributeError, "import torch_npu._inductor first", getattr, torch_npu, "_inductor")
refused(AttributeError, "import torch_npu.testing first", getattr, torch_npu, "testing")
import torch_npu._inductor
for module, name in ((torch_npu._inductor, "config"), (torch_npu.dynamo, "torchair"),
                     (torch_npu.utils, "set_asd_loss_scale")):
    refused(AttributeError, f"does not have {module.__name__}.{name}", getattr, module, name)
""",
    "lines and levels": """
import contextlib, io, os, re
from torch_npu._C._logging import _LogContext
from torch_npu.utils import utils
from torch_npu.utils._dynamo import _dynamo_register_interface_for_device
from toprope.sim.npu import _logs

form = r"\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\((\\d+)\\)-\\[(\\w+)\\] (.*)\\n"
for name, level in (("info", "INFO"), ("warn", "WARNING"), ("error", "ERROR")):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        getattr(utils, f"_print_{name}_log")("a line")
    assert re.fullmatch(form, text.getvalue()).groups() == (str(os.getpid()), level, "a line")

logs = _LogContext.GetInstance()
assert logs is _LogContext.GetInstance()
for level, lines in ((20, 1), (30, 0)):
    logs.setLogs({"torch.distributed": level})
    with contextlib.redirect_stderr(io.StringIO()) as text:
        _logs.info("torch.distributed", "a line")
        _logs.info("another part", "a line")
    assert text.getvalue().count("a line") == lines

_dynamo_register_interface_for_device()
from torch._dynamo.device_interface import get_interface_for_device
assert get_interface_for_device("npu").device_count() == torch.npu.device_count()
""",
    "the log of variables": """
import io, logging, os
os.environ["FIRST"], os.environ["EMPTY"] = "1", ""
text = io.StringIO()
logging.basicConfig(stream=text, level=logging.INFO, format="%(name)s %(message)s")
from torch_npu.utils.patch_getenv import loggerEnv

assert loggerEnv.name == "torch_npu.env"
assert os.getenv("FIRST") == os.environ.get("FIRST") == "1"
assert os.getenv("NOT_SET", "x") == "x" and os.environ.get("EMPTY") == ""
assert text.getvalue() == "torch_npu.env get env FIRST = 1\\n"
""",
}


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    return outcomes(CASES, TMPDIR=str(tmp_path_factory.mktemp("utils")))


@pytest.mark.parametrize("name", CASES)
def test_utils(failures, name) -> None:
    assert failures[name] == ""
