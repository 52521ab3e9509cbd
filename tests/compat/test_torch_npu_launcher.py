"""Launcher of torch_npu: ParallelStore, the rendezvous `parallel` and `python -m torch_npu.distributed.run`.

Holds src/toprope/compat/torch_npu/distributed.
"""

import re

import pytest

from torch_npu_programs import outcomes

pytestmark = [pytest.mark.native, pytest.mark.process]

CASES = {
    "a store": """
from datetime import timedelta
from torch_npu.distributed import ParallelStore

server = ParallelStore(port=0, agent_run=True, agent_pid=100, is_server=True, wait_workers=False, multi_tenant=True)
client = ParallelStore(port=server.port, agent_run=False, agent_pid=100, is_server=False)
client.set("key", b"value")
assert server.get("key") == b"value"
assert [store.add("count", 1) for store in (client, server, client)] == [1, 2, 3]
before = server.num_keys()
assert client.delete_key("key") and server.num_keys() == before - 1
second = ParallelStore(port=server.port, agent_run=True, is_server=True, wait_workers=False, multi_tenant=True)
assert second.add("count", 0) == 3
alone = ParallelStore("127.0.0.1", 0, 2, False, -1, True, False, timedelta(seconds=9))  # a worker waits for nobody
assert alone.add("count", 1) == 1
""",
    "an address": """
import os
import torch.distributed as dist
from torch_npu.distributed import ParallelStore
from torch_npu.distributed import rendezvous

url = "parallel://127.0.0.1:{}?rank=0&world_size=1"
refused(ValueError, "rank parameter missing", next, rendezvous._parallel_rendezvous_handler("parallel://a:1?world_size=2"))
refused(ValueError, "world size parameter missing", next, rendezvous._parallel_rendezvous_handler("parallel://a:1?rank=2"))
refused(ValueError, "port number missing", next, rendezvous._parallel_rendezvous_handler("parallel://a?rank=2"))
refused(ValueError, "from 0 to 65535", rendezvous._create_c10d_store, "localhost", 70000, 0, 2, None)
port = ParallelStore(port=0, is_server=True).port
dist.init_process_group("hccl", init_method=url.format(port + 1 if port < 65535 else port - 1))
x = torch.ones(2, device="npu")
dist.all_reduce(x)
assert x.tolist() == [1, 1] and dist.get_world_size() == 1
dist.destroy_process_group()
""",
    "a launch": """
import os, subprocess, sys, tempfile, textwrap

program = textwrap.dedent('''
    import os, torch, torch_npu, torch.distributed as dist
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl")
    x = torch.ones(1, device="npu")
    dist.all_reduce(x)
    print("sum", int(x), os.environ["TORCHELASTIC_USE_AGENT_STORE"])
    dist.destroy_process_group()
''')
start = (
    "import toprope.compat; toprope.compat.install(); import runpy;"
    "runpy.run_module('torch_npu.distributed.run', run_name='__main__', alter_sys=True)"
)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "worker.py")
    with open(path, "w") as file:
        file.write("import toprope.compat; toprope.compat.install()\\n" + program)
    from torch_npu.distributed import ParallelStore
    from torch_npu.distributed.run import parse_args
    port = ParallelStore(port=0, is_server=True).port - 1
    options = ["--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    options.append("--enable_tiered_parallel_tcpstore=true")
    assert parse_args([*options, path]).enable_tiered_parallel_tcpstore == "true"
    done = subprocess.run([sys.executable, "-c", start, *options, path], capture_output=True, text=True, timeout=250)
assert done.returncode == 0 and "sum 1 True" in done.stdout, (done.stdout, done.stderr)
""",
}


@pytest.fixture(scope="module")
def failures():
    return outcomes(CASES)


@pytest.mark.parametrize("name", CASES)
def test_launcher(failures, name) -> None:
    assert re.sub(r"\s+", " ", failures[name]) == ""
