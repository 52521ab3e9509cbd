"""The child process of `toprope doctor`: imports torch, loads its backends one by one, tries every kind of device.

Run by `toprope.device.doctor.torch_probe`, never imported. Each fact is written as one line of JSON to a file
descriptor of its own, as soon as it is known, so that a crash leaves what was found before it: say `doing` before each
step that may crash or hang, "end" last. `torch_probe.examination` reads the facts and `host.machine` has their classes:
a fact that is added here needs both. Tests: tests/device/test_doctor_cli.py, tests/device/test_doctor_wheel.py.
"""

import contextlib
import json
import os
import sys
import time
import warnings
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from toprope.device.host.child_process import say
from toprope.messages import Message, pack

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
DTYPES = ("float32", "bfloat16", "float16", "float64")


class Examiner:
    """Writes facts to a file descriptor."""

    def __init__(self, channel: int, options: dict[str, Any]) -> None:
        self.channel = channel
        self.options = options

    def say(self, fact: str, **details: object) -> None:
        """Write one fact."""
        say(self.channel, fact, **details)

    def doing(self, what: str) -> None:
        """Report the next step, so that a crash can be attributed to it."""
        self.say("doing", what=pack(what))

    def run(self) -> None:
        """Run all checks, or only those that the options name."""
        plain, only_npu = self.options.get("plain", False), self.options.get("only_npu", False)
        if self.import_torch(alone=not plain) and not plain:
            if not only_npu:
                self.load_backends()
            if self.load_torch_npu() or not only_npu:
                self.look_at_devices()
            if not only_npu:
                self.choose()
        self.say("end")

    def import_torch(self, *, alone: bool) -> bool:
        """Import torch; alone, it loads no backends: one that fails would end torch's own import."""
        self.doing("import torch")
        before = os.environ.get(AUTOLOAD)
        if alone:
            os.environ[AUTOLOAD] = "0"
        try:
            import torch
        except BaseException as error:
            self.say("torch", error=reason(error))
            return False
        finally:
            if before is not None:
                os.environ[AUTOLOAD] = before
            elif alone:
                del os.environ[AUTOLOAD]
        self.say("torch", version=str(getattr(torch, "__version__", "not known")))
        return True

    def load_backends(self) -> None:
        """Load what `import torch` would load, each for itself."""
        for entry in entry_points(group="torch.backends"):
            name = entry.module.partition(".")[0]
            if is_facade(name):
                continue  # a real torch_npu is installed, and in this process the simulated card stands in for it
            self.doing(Message("load the backend {name} ({value})", name=entry.name, value=entry.value))
            try:
                entry.load()()
            except Exception as error:
                self.say("backend", name=entry.name, module=name, error=reason(error))
            else:
                self.say("backend", name=entry.name, module=name)

    def load_torch_npu(self) -> bool:
        """Import torch_npu by name, for its own reason is the exact one; False where that failed."""
        try:
            spec = find_spec("torch_npu")
        except (ImportError, ValueError):
            spec = None
        if spec is None or spec.origin is None:
            return True  # without an origin it is a mere folder of that name
        place = spec.origin
        self.doing("import torch_npu")
        try:
            module = import_module("torch_npu")
        except Exception as error:
            self.say("torch_npu", file=place, error=reason(error))
            return False
        version = str(getattr(module, "__version__", "not known"))
        self.say("torch_npu", file=place, version=version, facade=is_facade("torch_npu"))
        return True

    def look_at_devices(self) -> None:
        """Ask every kind of device, and try dtypes and training on the first of each."""
        from toprope import device as interface
        from toprope.device.kinds import look

        only_npu = self.options.get("only_npu", False)
        for kind in ("npu",) if only_npu else interface.kinds():
            self.doing(Message("ask which devices of the kind {kind} there are", kind=kind))
            try:
                stand = look(kind)
                devices = interface.available(kind) if stand.state is interface.State.WORKS else []
            except Exception as error:
                self.say("absent", kind=kind, reason=reason(error))
                continue
            if not devices:
                broken = stand.do if stand.state is interface.State.BROKEN else ""
                self.say("absent", kind=kind, reason=pack(stand.reason), broken=pack(broken))
            for device in devices:
                first = device.index == 0
                if only_npu and not first:
                    self.say("device", name=str(device), kind=device.kind)
                    continue
                self.doing(Message("ask {device}", device=str(device)))
                try:
                    self.describe(device, first)
                    if first and not only_npu:
                        self.try_dtypes(device)
                        self.try_step(device)
                except Exception as error:
                    self.say("device", name=str(device), kind=device.kind, error=reason(error))

    def choose(self) -> None:
        """Ask for the device of a program that names none: what is set may ask for one that is not there."""
        from toprope import device as interface
        from toprope.errors import TopropeError

        self.doing(Message("choose a device"))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.say("choice", text=interface.choose(quiet=True).text)
        except TopropeError as error:
            self.say("choice", refused={"what": error.what, "looked_at": error.looked_at, "do": error.do})
        except Exception as error:
            self.say("choice", refused={"what": reason(error), "looked_at": "", "do": ""})

    def describe(self, device: Any, first: bool) -> None:
        """Name and memory; free memory of further cards only when asked, since it takes a little of each card."""
        properties = device.properties()
        simulated = bool(device.capabilities.simulated)
        asked = (first or simulated or self.options.get("memory")) and not self.options.get("only_npu")
        free = device.memory_info()[0] if asked else None
        self.say(
            "device", name=str(device), kind=device.kind, title=properties.name,
            total=properties.total_memory, free=free, simulated=simulated,
        )  # fmt: skip

    def try_dtypes(self, device: Any) -> None:
        """Run matmul, convolution and attention in every dtype, and time a product where time means something."""
        import torch

        for name in DTYPES:
            self.doing(Message("compute with {dtype} on {device}", dtype=name, device=str(device)))
            dtype = getattr(torch, name)
            found = device.probe(dtype)
            milliseconds = None
            if found.works and not device.capabilities.simulated:
                milliseconds = product_time(device, dtype)
            self.say(
                "dtype", device=str(device), dtype=name, works=found.works, failed=found.failed,
                reason=found.reason[:2000], milliseconds=milliseconds,
            )  # fmt: skip
        self.say("best", device=str(device), dtype=str(device.best_dtype()).removeprefix("torch."))

    def try_step(self, device: Any) -> None:
        """Train a tiny model for a few steps, with numbers drawn on the CPU."""
        import torch

        self.doing(Message("train on {device}", device=str(device)))
        begin = time.perf_counter()
        try:
            generator = torch.Generator().manual_seed(0)
            inputs = torch.randn(32, 8, generator=generator).to(device.torch_device)
            wanted = inputs.sum(1, keepdim=True)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
            model = model.to(device.torch_device)
            losses = []
            for _ in range(5):
                model.zero_grad()
                loss = torch.nn.functional.mse_loss(model(inputs), wanted)
                loss.backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():  # torch.optim would import torch._dynamo: a second and more
                    for parameter in model.parameters():
                        parameter.sub_(parameter.grad, alpha=0.05)  # type: ignore[arg-type]
                losses.append(float(loss))
            device.generator(0)
        except Exception as error:
            self.say("step", device=str(device), error=reason(error))
        else:
            spent = (time.perf_counter() - begin) * 1000
            self.say("step", device=str(device), first=losses[0], last=losses[-1], milliseconds=round(spent, 1))


def product_time(device: Any, dtype: Any) -> float:
    """Milliseconds of one product of two 256 x 256 matrices: the best of a few, on one thread of the CPU."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, another program on the machine is in the figure
    try:
        matrix = torch.ones(256, 256, device=device.torch_device, dtype=dtype)
        best = float("inf")
        for _ in range(5):
            device.synchronize()
            begin = time.perf_counter()
            matrix @ matrix
            device.synchronize()
            best = min(best, time.perf_counter() - begin)
    finally:
        torch.set_num_threads(threads)
    return round(best * 1000, 3)


def is_facade(name: str) -> bool:
    """True if a module of this name is toprope's stand-in."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and bool(getattr(spec.loader, "__toprope__", False))


def reason(error: BaseException) -> str:
    """Type and text of an error, and of what it was raised from."""
    text = f"{type(error).__name__}: {error}"
    cause = error.__cause__
    if cause is not None:
        text += f" (from {type(cause).__name__}: {cause})"
    return " ".join(text.split())[:4000]


if __name__ == "__main__":
    examiner = Examiner(int(sys.argv[2]), json.loads(sys.argv[1]))
    try:
        examiner.run()
    except BaseException as error:
        with contextlib.suppress(OSError):
            examiner.say("failed", error=reason(error))
        raise
