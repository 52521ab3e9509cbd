"""The interface of a device: the abstract class that each kind fills in, and the records it answers with.

A new kind of device is one file with a subclass of `Device` and an entry point of the group `toprope.backends`:

    [project.entry-points."toprope.backends"]
    mine = "my_package.my_file:MyDevice"

The name of the entry point is the kind: the part before the colon in "mine:0". Other packages have such subclasses
(docs/adding.md): an abstract method that is added breaks them. A method that is added to `Device` has an implementation
here that all kinds can use, or it is new in `accelerator` and `cpu` too. Tests: tests/device/test_device_backends.py,
which has a kind of its own, and tests/device/test_device_cpu.py.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from toprope.device.probing import DtypeChoice, DtypeProbe, choose_dtype, probe, why_not
from toprope.device.seeds import concrete_seed
from toprope.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["Availability", "Capabilities", "Device", "FallbackWarning", "Memory", "Properties", "State"]


class FallbackWarning(UserWarning):
    """A device was asked for that is not there, and another was taken in its place because that was allowed."""


class State(StrEnum):
    """The state of a kind of device in this process."""

    WORKS = "works"
    NOT_INSTALLED = "not installed"
    BROKEN = "broken"
    NO_CARD = "no card"


@dataclass(frozen=True)
class Availability:
    """The answer if a kind of device can be used here, with the reason why not.

    Attributes:
        kind: "npu", "cuda", "cpu", ...
        state: its state.
        count: number of devices that this process sees.
        reason: why there is none, as a sentence without a full stop; empty where it works.
        looked_at: the facts that the answer rests on, such as versions, the mask and device files; empty where it
            works, see `Device.facts`.
        do: what can be done about it; empty where it works.
        surprising: there is none although the machine was made ready for it and nobody hid it. A program that chooses
            by itself then says what it passed over.
    """

    kind: str
    state: State
    count: int = 0
    reason: str = ""
    looked_at: str = ""
    do: str = ""
    surprising: bool = False

    @property
    def text(self) -> str:
        """The answer in one line, without a full stop."""
        if self.state is State.WORKS:
            return f"{self.kind}: {self.count} {'device' if self.count == 1 else 'devices'}"
        return f"{self.kind}: {self.reason}"


@dataclass(frozen=True)
class Capabilities:
    """The abilities of a device. Ask these, and not the name of the kind: a new kind then needs no new branch.

    Attributes:
        simulated: it is toprope's simulated card and not a real one.
        separate_memory: it has memory of its own, so that tensors are moved there and offloading them saves some.
        streams: work on several of its streams can overlap, and events have an order to keep.
        generators: it draws random numbers itself, so `torch.Generator` can live on it.
        core_limits: the cores that a stream may use can be limited.
        pinned_memory: host memory can be pinned for its copies.
        collectives: the backend for torch.distributed that belongs to it ("hccl", "nccl", "gloo"), "" without one.
    """

    simulated: bool = False
    separate_memory: bool = False
    streams: bool = False
    generators: bool = False
    core_limits: bool = False
    pinned_memory: bool = False
    collectives: str = ""


@dataclass(frozen=True)
class Properties:
    """The facts of a device. A figure that its software does not tell is None, never a guess.

    Attributes:
        name: as the device's own software gives it, such as "Ascend910B3".
        total_memory: bytes.
        cores: its largest units of computing: vector cores of an NPU, multiprocessors of a GPU, cores of a CPU.
        cube_cores: cores for matrices, on an NPU.
        version: of compute capability, (major, minor), where the kind has such a thing.
    """

    name: str
    total_memory: int | None = None
    cores: int | None = None
    cube_cores: int | None = None
    version: tuple[int, int] | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes of a device's memory; None for a figure that this kind of device does not have.

    Attributes:
        allocated: in use by tensors of this process. On the CPU: what the process holds in memory (resident).
        reserved: held by torch's allocator for this process, in use or not.
        peak: the most that was allocated since the start or since `reset_peak_memory`.
        free: what any process could still get from the device.
        total: the size of the device's memory. On the CPU: of the machine, or of the container where that is less.
    """

    allocated: int | None
    reserved: int | None
    peak: int | None
    free: int | None
    total: int | None

    def as_dict(self) -> dict[str, int | None]:
        """The figures by name, ready for JSON."""
        return asdict(self)


class Device(ABC):
    """One device that this process sees. Made by `toprope.device.get`, which checks that it is there.

    Devices compare by kind and index, can be keys, and travel between processes by name (the receiver's `get`
    decides whether it has such a device).

    Args:
        index: the number that the process knows it by, 0 for the first.
    """

    kind: ClassVar[str]
    """The part before the colon: "npu"."""

    title: ClassVar[str]
    """The name of this kind for people: "Ascend NPU"."""

    priority: ClassVar[int] = 100
    """Rank in the choice that nobody made: the kind with the highest that works is taken. NPU 300, CUDA 200, CPU 0."""

    mask_variable: ClassVar[str] = ""
    """The environment variable that says which of these devices a process sees; empty without one."""

    index_code: ClassVar[str] = ""
    """The vendor's code and words for an index that is not there."""

    dtype_order: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "float32")
    """Names of the dtypes that `best_dtype` tries, best first."""

    dtype_order_reason: ClassVar[str] = ""
    """Reason for this order, in a few words; empty where it is the size."""

    index: int
    """The number that the process knows it by."""

    torch_device: torch.device
    """The same device for torch: `torch.ones(2, device=device.torch_device)`."""

    def __init__(self, index: int) -> None:
        import torch

        self.index = index
        self.torch_device = torch.device(self.kind, index)

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return f"<toprope device {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (self.kind, self.index) == (other.kind, other.index)

    def __hash__(self) -> int:
        return hash((self.kind, self.index))

    def __reduce__(self) -> tuple[Any, ...]:
        from toprope import device

        return device.get, (str(self),)

    # The kind

    @classmethod
    @abstractmethod
    def look(cls) -> Availability:
        """Answer if this kind can be used in this process, or why not. Does not raise, and does not touch a device."""

    @classmethod
    def facts(cls) -> str:
        """Describe the software of this kind in a line, for an error: versions, mask, device files. Does not raise."""
        return ""

    @classmethod
    @abstractmethod
    def current_index(cls) -> int:
        """The index of this thread's current device. Does not touch a device that the process has not used."""

    # What it is

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The abilities of the device."""

    @abstractmethod
    def properties(self) -> Properties:
        """The facts of the device."""

    @property
    def name(self) -> str:
        """Its name as its own software gives it, such as "Ascend910B3"."""
        return self.properties().name

    def software_version(self) -> str | None:
        """The version of the software that brings the kind to torch, such as torch_npu's; None where it tells none."""
        return None

    # Which is current

    @abstractmethod
    def set_current(self) -> None:
        """Make it torch's current device of this thread; other threads keep theirs."""

    @abstractmethod
    def as_current(self) -> AbstractContextManager[Any]:
        """A context in which it is torch's current device of this thread. See also `toprope.device.use`."""

    # Memory

    @abstractmethod
    def memory_allocated(self) -> int:
        """Bytes in use by tensors of this process; on the CPU, what the process holds in memory."""

    @abstractmethod
    def memory_reserved(self) -> int | None:
        """Bytes that torch's allocator holds for this process; None where it keeps none for later."""

    @abstractmethod
    def max_memory_allocated(self) -> int | None:
        """The most bytes allocated since the start or since `reset_peak_memory`."""

    @abstractmethod
    def reset_peak_memory(self) -> None:
        """Reset `max_memory_allocated` to what is allocated now."""

    @abstractmethod
    def memory_info(self) -> tuple[int | None, int | None]:
        """Free and total bytes of the device, other processes counted."""

    def memory(self) -> Memory:
        """All figures at once."""
        free, total = self.memory_info()
        return Memory(self.memory_allocated(), self.memory_reserved(), self.max_memory_allocated(), free, total)

    @abstractmethod
    def empty_cache(self) -> None:
        """Give back what torch's allocator holds and no tensor uses; on the CPU, what the C library keeps too."""

    def take_compiled_operators(self) -> str:
        """Have this process take operators as they come compiled, instead of compiling each at its first use.

        Returns:
            What was switched, in the words of the device's software; "" where there is no such switch.
        """
        return ""

    def holders(self) -> tuple[str, ...]:
        """Processes that hold memory of the device, a text each; empty where its software does not tell them."""
        return ()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True if the error says that memory ran out. See `toprope.device.is_out_of_memory`."""
        from toprope.device.memory import is_out_of_memory

        return is_out_of_memory(error)

    def register_memory(self, address: int, nbytes: int) -> Callable[[], None] | None:
        """Pin memory of the host that is there already, for copies from and to the device.

        Args:
            address: of the first byte, at the start of a page.
            nbytes: whole pages.

        Returns:
            What ends it, once nothing is on its way any more; None where it cannot be done.
        """
        return None

    # Order of work

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""

    @abstractmethod
    def stream(self, priority: int = 0) -> Any:
        """A new stream of the device. Where there are no streams, a stand-in whose work is done at once."""

    @abstractmethod
    def current_stream(self) -> Any:
        """The stream that this thread's work on the device goes to."""

    @abstractmethod
    def default_stream(self) -> Any:
        """The stream that work goes to where nobody chose one."""

    @abstractmethod
    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """A context in which this thread's work goes to `stream`. It waits for nothing: see `side_stream`."""

    @abstractmethod
    def event(self, *, timing: bool = False) -> Any:
        """A new event: record it in a stream, wait for it, and with `timing` measure milliseconds between two."""

    @contextmanager
    def side_stream(self, priority: int = 0) -> Iterator[Any]:
        """A context whose work goes to a new stream, after all that was queued before and before all that follows."""
        outer, inner = self.current_stream(), self.stream(priority)
        inner.wait_stream(outer)
        try:
            with self.on_stream(inner):
                yield inner
        finally:
            outer.wait_stream(inner)

    # Random numbers

    def generator(
        self, seed: int | Literal["random"] | None = None, on: Literal["device", "cpu"] = "device"
    ) -> torch.Generator:
        """A generator of random numbers with a known seed.

        The same seed gives other numbers on another kind of device: keep `generator.device`, which has the index
        too, and `generator.initial_seed()` with what is drawn.

        Args:
            seed: 0 to 2**64 - 1; None, "random" or -1 draws one.
            on: "device" for numbers drawn on the device itself; "cpu" for the same numbers on every device.

        Raises:
            SeedError: no such seed.
            UnsupportedError: the device draws no random numbers itself.
        """
        import torch

        if on not in ("device", "cpu"):
            raise UsageError(f"a generator is on the 'device' or on the 'cpu', not on {on!r}.", do="give one of them")
        number = concrete_seed(seed)
        if on == "device" and not self.capabilities.generators:
            raise UnsupportedError(
                f"{self} draws no random numbers itself.",
                looked_at=f"torch.Generator(device={str(self)!r})",
                do="draw them on the CPU and move them: generator(seed, on='cpu')",
            )
        where = self.torch_device if on == "device" else torch.device("cpu")
        return torch.Generator(device=where).manual_seed(number)

    @abstractmethod
    def manual_seed(self, seed: int) -> None:
        """Seed the device's own default generator. See also `toprope.device.seed_all`."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the default generators of all devices of this kind, and of no other."""
        for index in range(cls.look().count):
            cls(index).manual_seed(seed)

    @abstractmethod
    def rng_state(self) -> torch.Tensor:
        """The state of the device's default generator, bytes on the CPU."""

    @abstractmethod
    def set_rng_state(self, state: torch.Tensor) -> None:
        """Put back a state that `rng_state` gave."""

    # Dtypes

    def fused_attention(self) -> Any:
        """The operator `npu_fusion_attention` with torch_npu's signature; None where the device has none."""
        return None

    def refuses(self, dtype: torch.dtype) -> str:
        """The reason not to try a dtype, known without making a tensor of it; "" where it is worth trying."""
        return ""

    def probe(self, dtype: torch.dtype) -> DtypeProbe:
        """Run matmul, convolution and attention of this dtype on the device, once a process.

        Raises:
            DeviceFullError: the device has no memory for it; this says nothing about the dtype.
            UsageError: it is no torch.dtype.
        """
        return probe(self, dtype)

    def best_dtype(self, *among: torch.dtype) -> torch.dtype:
        """The first dtype that works for matmul, convolution and attention, tried on the device itself.

        Args:
            among: what to try, best first; left out, this kind's `dtype_order`.

        Raises:
            UnsupportedError: none of them works.
            DeviceFullError: the device has no memory left to try them.
        """
        return choose_dtype(self, among).dtype

    def choose_dtype(self, *among: torch.dtype) -> DtypeChoice:
        """The dtype of `best_dtype` with the reasons: `print(card.choose_dtype().text)`. Errors as there."""
        return choose_dtype(self, among)

    def why_not(self, dtype: torch.dtype) -> str:
        """Explain in one line why `best_dtype()` is not this dtype; "" where it is. Errors as for `best_dtype`."""
        return why_not(self, dtype)

    # Files

    def load(self, path: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> Any:
        """The contents of a file of weights, on this device. See `toprope.device.load`."""
        from toprope.device.weights import load_file

        return load_file(path, self.torch_device, dtype=dtype)
