"""`toprope serve` as a process, and clients of it. Not a test."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil

PROGRAM = """
import os
import time

import torch

from toprope import flow as df

df.init({})


@df.npu_model(batch=8, wait="20ms")
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        torch.nn.init.ones_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    @df.method()
    def forward(self, x):
        if (x < 0).any():
            raise ValueError("negative")
        return self.layer(x)


@df.pyflow
def best(scores):
    return scores.sum(-1).tolist()


image = df.FlowData(name="image", schema=df.TensorDesc(df.DT_FLOAT, [-1, 3]))
graph = df.FlowGraph([best.fnode().set_alias("label")(Model.fnode().forward(image))], name="classifier")


@df.pyflow(instances=int(os.environ.get("SERVE_INSTANCES", "1")))
class Work:
    @df.method()
    def run(self, task):
        if task.get("die"):
            os.kill(os.getpid(), 9)
        if task.get("note"):
            with open(task["note"], "a") as file:
                file.write(str(task["value"]) + "\\n")
        time.sleep(task.get("sleep", 0))
        return {"value": task["value"], "pid": os.getpid()}


def work():
    task = df.FlowData(name="task")
    node = Work.fnode().set_alias("done")
    return df.FlowGraph([node.run(task)], name="work", restarts=int(os.environ.get("SERVE_RESTARTS", "1")))


@df.pyflow
def count(n):
    for number in range(n):
        time.sleep(0.2)
        yield number


def counter():
    n = df.FlowData(name="n")
    return df.FlowGraph([count.fnode().set_alias("number")(n)], name="counter")


other = 3
"""

START = 240
"""Seconds in which a server must be there, on a machine that has much else to do."""


class Server:
    """A server; a context.

    Args:
        folder: for its file and its log.
        target: name in the file; "" for the default.
        options: of `toprope serve`.
        variables: of its environment.
        before: words before `toprope serve`.
    """

    def __init__(self, folder, target="", *options, before=(), **variables):
        file = Path(folder) / "graph.py"
        file.write_text(PROGRAM)
        self.log = Path(folder) / f"log{time.monotonic_ns()}"
        words = ["serve", str(file) + (f":{target}" if target else ""), "--port", "0", *options]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPROPE_SIM")}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "toprope", *words], stderr=log, stdout=log, cwd=folder,
                env=kept | {"OMP_NUM_THREADS": "1"} | variables,
            )  # fmt: skip
        self.url = ""

    def __enter__(self):
        until = time.monotonic() + START
        while not self.url:
            found = re.search(r"is served at (http://\S+)", self.said())
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < until, self.said()
            if found:
                self.url = found[1]
            time.sleep(0.05)
        while True:
            try:
                assert httpx.get(f"{self.url}/readyz").status_code == 200
                return self
            except httpx.ConnectError:
                assert time.monotonic() < until, self.said()

    def __exit__(self, *_):
        children = self.children()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        _, left = psutil.wait_procs(children, 60)
        assert not left, left

    def said(self):
        """What it has written."""
        return self.log.read_text()

    def children(self):
        """Its processes."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def memory(self):
        """Bytes of the server and its processes."""
        found = 0
        for each in [psutil.Process(self.process.pid), *self.children()]:
            try:
                found += each.memory_full_info().uss
            except psutil.NoSuchProcess:
                continue
        return found

    def post(self, timeout=120, **request):
        """One request on a connection of its own."""
        return httpx.post(f"{self.url}/predict", timeout=timeout, **request)

    def work(self, value, **task):
        """One request to `work`."""
        return self.post(json={"task": {"value": value, **task}})

    def metric(self, name):
        """A sample of /metrics, by its name and labels."""
        text = httpx.get(f"{self.url}/metrics").text
        found = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(found[0]) if found else 0.0

    def left(self, body):
        """Send a request whose client goes at once: the open socket."""
        host, port = self.url.removeprefix("http://").split(":")
        sock = socket.create_connection((host, int(port)))
        data = json.dumps(body).encode()
        lines = ["POST /predict HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(data)}"]
        sock.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        return sock


def together(calls):
    """Call functions in threads of their own; their results, or exceptions, in order."""
    found = [None] * len(calls)

    def run(place, call):
        try:
            found[place] = call()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


def overload(server, clients, seconds):
    """Clients that send one request after the other, for some seconds: for each client (value, answer) in its order.

    The answer is the error where the server does not answer, and the client's last one.
    """
    until = time.monotonic() + seconds

    def client(number):
        found = []
        with httpx.Client(base_url=server.url, timeout=120) as session:
            while time.monotonic() < until:
                value = f"{number}-{len(found)}"
                try:
                    found.append((value, session.post("/predict", json={"task": {"value": value, "sleep": 0.01}})))
                except httpx.TransportError as error:
                    found.append((value, error))
                    break
        return found

    return together([lambda number=number: client(number) for number in range(clients)])
