"""torch_npu.distributed.rpc: the backend NPU_TENSORPIPE between two workers, and its options.

Holds src/toprope/compat/torch_npu/distributed/rpc against values that one process computes.
"""

import json

import pytest

from cuda_programs import run_ranks
from torch_npu_programs import HEAD, outcomes

pytestmark = [pytest.mark.native, pytest.mark.process]

WORKERS = """
import json, os
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch_npu.distributed.rpc.options import NPUTensorPipeRpcBackendOptions

def places(*tensors):
    return [str(tensor.device) for tensor in tensors]

def echo(*tensors):
    return tensors

def other_card(tensor):
    return tensor.to("npu:0")

def twice(tensor):
    return tensor * 2

def of_its_own():
    return torch.ones(1, device="npu:1", requires_grad=True)

def error_of(*call):
    try:
        rpc.rpc_sync("worker1", *call)
    except RuntimeError as error:
        return str(error)
    return ''

rank = int(os.environ["RANK"])
rpc.init_rpc(
    f"worker{rank}",
    rank=rank,
    world_size=2,
    backend=rpc.backend_registry.BackendType.NPU_TENSORPIPE,
    rpc_backend_options=NPUTensorPipeRpcBackendOptions(device_maps={} if rank else {"worker1": {"npu:0": "npu:1"}}),
)
if rank == 0:
    x = torch.arange(3.0, device="npu:0", requires_grad=True)
    there = rpc.rpc_sync("worker1", places, args=(x, torch.ones(2)))
    leaf, host = rpc.rpc_sync("worker1", echo, args=(x, torch.ones(2)))
    back = [*places(leaf, host), leaf.tolist(), leaf.is_leaf and leaf.requires_grad]
    operator = rpc.rpc_sync("worker1", torch.add, args=(x.detach(), 1)).tolist()
    rref = rpc.remote("worker1", torch.add, args=(x.detach(), 2))
    remote = [str(rref.to_here().device), rref.to_here().tolist()]
    with dist_autograd.context() as context:
        doubled = rpc.rpc_sync("worker1", twice, args=(x.detach(),)).tolist()
        inside = [doubled, error_of(twice, (x,)), error_of(of_its_own)]
        loss = rpc.rpc_sync("worker1", twice, args=(torch.ones(2, requires_grad=True),)).sum()
        dist_autograd.backward(context, [loss])
        gradient = [each.tolist() for each in dist_autograd.get_gradients(context).values()]
    no_map = error_of(echo, (torch.ones(1, device="npu:1"),))
    no_way_back = error_of(other_card, (x.detach(),))
    names = ("there", "back", "operator", "remote", "inside", "gradient", "no_map", "no_way_back")
    print("seen:" + json.dumps({name: globals()[name] for name in names}))
rpc.shutdown()
"""

OPTIONS = {
    "a map": """
from torch_npu.distributed.rpc.options import NPUTensorPipeRpcBackendOptions, _to_device, _to_device_map

options = NPUTensorPipeRpcBackendOptions(num_worker_threads=8, device_maps={"worker1": {"npu:0": "npu:1"}})
options.set_device_map("worker2", {"npu:0": "npu:0"})
options.set_devices(["npu:0", "npu:1"])
assert sorted(options.device_maps) == ["worker1", "worker2"] and len(options.devices) == 2
other = {"npu:0": "npu:2"}
refused(ValueError, "1-to-1 mapping, trying to map npu:0 to npu:2 and npu:1", options.set_device_map, "worker1", other)
refused(ValueError, "ERR02003 DIST invalid value", _to_device_map, {"npu:0": "npu:1", "npu:2": "npu:1"})
refused(ValueError, "got device type cpu", _to_device, "cpu:0")
""",
    "what init_rpc refuses": """
import os
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch_npu.distributed.rpc import backend_registry
from torch_npu.distributed.rpc.options import NPUTensorPipeRpcBackendOptions

npu = [torch.device("npu", index) for index in range(3)]
check = backend_registry._validate_device_maps
refused(ValueError, "duplicated devices", check, ["a"], {"a": {"npu": 2}}, {"a": {}}, {"a": [npu[0], npu[0]]})
refused(ValueError, "invalid indices", check, ["a"], {"a": {"npu": 2}}, {"a": {}}, {"a": [npu[2]]})
maps = {"a": {"b": {npu[0]: npu[1]}}}
refused(ValueError, "invalid target node names", check, ["a"], {"a": {"npu": 2}}, maps, {"a": []})
init = backend_registry._npu_tensorpipe_init_backend_handler
refused(TypeError, "must be a c10d::Store", init, None, "a", 0, 1, None)
refused(TypeError, "must be a `NPUTensorPipeRpcBackendOptions`", init, dist.HashStore(), "a", 0, 1, None)
options = NPUTensorPipeRpcBackendOptions()
refused(NotImplementedError, "do: give init_rpc world_size", init, dist.HashStore(), "a", 0, None, options)
assert rpc.BackendType.NPU_TENSORPIPE.name == "NPU_TENSORPIPE"
assert rpc.backend_registry._tensorpipe_validate_devices([torch.device("cpu")], 0)  # torch's own check goes on
""",
}


def test_tensors_of_cards_travel_by_the_map_and_back() -> None:
    seen = json.loads(run_ranks(WORKERS, head=HEAD)[0].rpartition("seen:")[2])
    assert seen["there"] == ["npu:1", "cpu"]
    assert seen["back"] == ["npu:0", "cpu", [0, 1, 2], True]
    assert seen["operator"] == [1, 2, 3]
    assert seen["remote"] == ["npu:0", [2, 3, 4]]
    assert seen["inside"][0] == [0, 2, 4]
    assert "torch.distributed.autograd does not go through tensors of npu" in seen["inside"][1]
    assert seen["gradient"] == [[2, 2]]
    assert "Request device mapping is not available for destination worker1 for device npu:1" in seen["no_map"]
    assert "Response device mapping is not available for destination worker0 for device npu:0" in seen["no_way_back"]


@pytest.fixture(scope="module")
def failures():
    return outcomes(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_options(failures, name) -> None:
    assert failures[name] == ""
