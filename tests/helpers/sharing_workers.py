"""What the other process of test_sharing.py does; a module of its own, so that a spawned process finds it."""

import gc
import os
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

from toprope.sim import installed

SPAWN = multiprocessing.get_context("spawn")


def facts(tensor: torch.Tensor) -> dict[str, Any]:
    """What a tensor is, as plain data."""
    return {
        "type": type(tensor).__name__,
        "device": str(tensor.device),
        "dtype": str(tensor.dtype),
        "shape": tuple(tensor.shape),
        "stride": tensor.stride(),
        "offset": tensor.storage_offset(),
        "storage": tensor.untyped_storage().nbytes(),
        "requires_grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
    }


def serve(inbox: Any, outbox: Any) -> None:
    """Does what it is told, (word, arguments), with the tensors that it keeps by name."""
    kept: dict[str, torch.Tensor] = {}
    while True:
        word, *arguments = inbox.get()
        if word == "keep":
            kept[arguments[0]] = arguments[1]
            answer: Any = facts(arguments[1])
        elif word == "read":
            answer = kept[arguments[0]].detach().cpu().float().tolist()
        elif word == "fill":
            name, value = arguments
            kept[name].detach().fill_(value)
            torch.npu.synchronize()
            answer = None
        elif word == "drop":
            kept.pop(arguments[0])
            gc.collect()
            answer = None
        elif word == "allocated":
            answer = torch.npu.memory_allocated()
        elif word == "make":
            kept["made"] = torch.arange(float(arguments[0]), device="npu")
            answer = kept["made"]
        elif word == "pid":
            answer = os.getpid()
        else:
            return
        outbox.put(answer)
        del answer, arguments


class Other:
    """The other process."""

    def __init__(self) -> None:
        os.environ["TOPROPE_SIM"] = installed().format()
        self._inbox, self._outbox = SPAWN.Queue(), SPAWN.Queue()
        self.process = SPAWN.Process(target=serve, args=(self._inbox, self._outbox), daemon=True)
        self.process.start()

    def __call__(self, *words: Any) -> Any:
        """What it answers to this order."""
        self._inbox.put(words)
        return self._outbox.get(timeout=100)

    def end(self) -> None:
        """Ends it in good order."""
        self._inbox.put(("end",))
        self.process.join(timeout=100)
        assert self.process.exitcode == 0


def train(model: torch.nn.Module, steps: int) -> None:
    """Some steps on a model that another process owns."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 3, device="npu")).square().sum().backward()
        optimizer.step()
    torch.npu.synchronize()
