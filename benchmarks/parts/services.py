"""The same model as three services: `toprope serve`, LitServe, Ray Serve. Each is a program of its own.

Used by benchmarks/serve.py, which starts, measures and stops them. The programs must compute the same with the same
JSON; LitServe's and Ray Serve's names and options are theirs.

Tests: tests/flow/test_serve_benchmark.py, of ours alone: the others need their packages.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

__all__ = ["MODEL", "Service", "litserve", "ray_serve", "toprope_serve"]

MODEL = """
import torch

torch.set_num_threads(1)
torch.manual_seed(0)


def make():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 16)).eval()
"""

_TOPROPE = """
from model import make
import torch
from toprope import flow as df

df.init({{}})
x = df.FlowData(name="x", schema=df.TensorDesc(df.DT_FLOAT, [-1, 64]))


@df.npu_model(batch={batch}, wait="{wait}ms", instances={instances}, resources={{"num_cpus": 1}})
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = make()

    @df.method()
    def forward(self, x):
        with torch.inference_mode():
            return self.layers(x)


graph = df.FlowGraph([Model.fnode().set_alias("y").forward(x)])
"""

_LITSERVE = """
from model import make
import litserve as ls
import torch


class Api(ls.LitAPI):
    def setup(self, device):
        torch.set_num_threads(1)
        self.model = make()

    def decode_request(self, request):
        return torch.tensor(request["x"], dtype=torch.float32)

    def batch(self, inputs):
        return torch.cat(inputs)

    def predict(self, x):
        with torch.inference_mode():
            return self.model(x)

    def unbatch(self, output):
        return list(output.split(1))

    def encode_response(self, output):
        return {{"y": output.tolist()}}


if __name__ == "__main__":
    api = Api(max_batch_size={batch}, batch_timeout={wait} / 1000)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device={instances}, timeout=60, fast_queue=True)
    server.run(host="127.0.0.1", port={port}, log_level="warning", generate_client_file=False)
"""

_RAY = """
import os
import time

os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "60"  # two cores need more than 5 s to start it

from model import make
import ray
import torch
from ray import serve


@serve.deployment(num_replicas={instances}, max_ongoing_requests=200, ray_actor_options={{"num_cpus": 0}})
class Model:
    def __init__(self):
        torch.set_num_threads(1)
        self.model = make()

    @serve.batch(max_batch_size={batch}, batch_wait_timeout_s={wait} / 1000)
    async def predict(self, inputs):
        with torch.inference_mode():
            return list(self.model(torch.cat(inputs)).split(1))

    async def __call__(self, request):
        body = await request.json()
        found = await self.predict(torch.tensor(body["x"], dtype=torch.float32))
        return {{"y": found.tolist()}}


ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=4)
http = {{"host": "127.0.0.1", "port": {port}}}
serve.start(http_options=http, logging_config={{"enable_access_log": False}})
serve.run(Model.bind(), route_prefix="/predict")
while True:
    time.sleep(1)
"""


@dataclass
class Service:
    """A service that runs.

    Args:
        name: of the software.
        settings: as its user writes them.
        command: starts it.
        folder: of its program.
        port: that it listens on.
    """

    name: str
    settings: str
    command: list[str]
    folder: Path
    port: int
    log: Path = field(init=False)

    def start(self, seconds: float = 180) -> None:
        """Start it, and wait until it answers."""
        self.log = self.folder / "log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                self.command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(self.folder), *_path()])},
            )  # fmt: skip
        until = time.monotonic() + seconds
        while True:
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise RuntimeError(f"{self.name} does not start:\n{self.log.read_text()[-3000:]}")
            try:
                if self.measure(b'{"x": [[' + b", ".join([b"0"] * 64) + b"]]}", 1, 0.1)["errors"] == []:
                    return
            except (OSError, RuntimeError):
                pass
            time.sleep(0.3)

    def measure(self, body: bytes, connections: int, seconds: float) -> dict[str, object]:
        """Run `http_load` against it; return its figures."""
        import json

        client = Path(__file__).with_name("http_load.py")
        words = ["127.0.0.1", str(self.port), "/predict", str(connections), str(seconds)]
        done = subprocess.run(
            [sys.executable, str(client), *words], input=body, capture_output=True, timeout=seconds + 60
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode()[-500:])
        return json.loads(done.stdout)

    def pids(self) -> list[int]:
        """Its processes."""
        try:
            parent = psutil.Process(self._process.pid)
            return [parent.pid, *(each.pid for each in parent.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        """End it, and everything that it has started."""
        pids = self.pids()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _path() -> list[str]:
    return [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _made(name: str, folder: Path, text: str, batch: int, wait: float, instances: int) -> tuple[Path, int]:
    place = folder / f"{name}-{batch}-{wait:g}-{instances}"
    place.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    program = text.format(batch=batch, wait=wait, instances=instances, port=port)
    (place / "graph.py").write_text(program.replace("from model import make\n", MODEL))  # one file, as Ray sends it
    return place, port


def toprope_serve(folder: Path, batch: int, wait: float, instances: int) -> Service:
    """Ours."""
    place, port = _made("toprope", folder, _TOPROPE, batch, wait, instances)
    words = ["serve", "graph.py", "--port", str(port), "--max-ongoing-requests", "1000"]
    settings = f'batch={batch}, wait="{wait:g}ms", instances={instances}'
    return Service("toprope serve", settings, [sys.executable, "-m", "toprope", *words], place, port)


def litserve(folder: Path, python: str, batch: int, wait: float, instances: int) -> Service:
    """LitServe, by the Python that has it."""
    place, port = _made("litserve", folder, _LITSERVE, batch, wait, instances)
    settings = f"max_batch_size={batch}, batch_timeout={wait / 1000:g}, workers_per_device={instances}, fast_queue=True"
    return Service("LitServe", settings, [python, "graph.py"], place, port)


def ray_serve(folder: Path, python: str, batch: int, wait: float, instances: int) -> Service:
    """Ray Serve, by the Python that has it."""
    place, port = _made("ray", folder, _RAY, batch, wait, instances)
    settings = f"@serve.batch(max_batch_size={batch}, batch_wait_timeout_s={wait / 1000:g}), num_replicas={instances}"
    return Service("Ray Serve", settings, [python, "graph.py"], place, port)
