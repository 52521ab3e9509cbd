"""torch.compile for the card: what TorchDynamo asks of a device, and Inductor's C++ code over the card's bytes.

The generated kernels are those for the CPU: they read and write the same memory. Nothing here says anything about
the code that a real card would run.
"""

from __future__ import annotations

from typing import Any

import torch

from toprope.imports import after_import

__all__ = ["codegen", "register"]


def register() -> None:
    """Tells the compiler about npu as soon as a program uses it; importing it takes seconds."""
    after_import("torch._dynamo.device_interface", _register_interface)
    after_import("torch._inductor.codegen.common", _register_overrides)


def _register_interface() -> None:
    from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

    npu = torch.npu  # type: ignore[attr-defined]

    class NpuInterface(DeviceInterface):
        device = npu.device
        Event = npu.Event
        Stream = npu.Stream

        class Worker:
            set_device = staticmethod(npu.set_device)
            current_device = staticmethod(npu.current_device)

            @staticmethod
            def get_device_properties(device: Any = None) -> Any:
                return npu.get_device_properties(device)

        current_device = staticmethod(npu.current_device)
        set_device = staticmethod(npu.set_device)
        device_count = staticmethod(npu.device_count)
        stream = staticmethod(npu.stream)
        current_stream = staticmethod(npu.current_stream)
        set_stream = staticmethod(npu.set_stream)
        synchronize = staticmethod(npu.synchronize)
        get_device_properties = staticmethod(npu.get_device_properties)
        is_available = staticmethod(npu.is_available)
        memory_allocated = staticmethod(npu.memory_allocated)

        @staticmethod
        def exchange_device(device: int) -> int:
            if device < 0:
                return int(npu.current_device())
            return torch._C._accelerator_exchangeDevice(device)

        @staticmethod
        def maybe_exchange_device(device: int) -> int:
            return torch._C._accelerator_maybeExchangeDevice(device)

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            return int(npu.current_stream(device_idx).stream_id)

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return bool(npu.is_bf16_supported())

        @staticmethod
        def get_compute_capability(device: Any = None) -> str:
            return str(npu.get_device_name(device))

        @staticmethod
        def is_triton_capable(device: Any = None) -> bool:
            return False

    register_interface_for_device("npu", NpuInterface)
    for index in range(npu.device_count()):
        register_interface_for_device(f"npu:{index}", NpuInterface)


def _register_overrides() -> None:
    from torch._inductor.codegen.common import DeviceOpOverrides, register_device_op_overrides

    class NpuOverrides(DeviceOpOverrides):
        def import_get_raw_stream_as(self, name: str) -> str:
            return f"def {name}(_): return 0"

        def set_device(self, device_idx: int) -> str:
            return f"torch.npu.set_device({device_idx})"

        def synchronize(self) -> str:
            return "torch.npu.synchronize()"

        def device_guard(self, device_idx: int) -> str:
            return f"torch.npu.device({device_idx})"

    register_device_op_overrides("npu", NpuOverrides())


def codegen(name: str) -> Any:
    """The class that Inductor looks up in `torch.npu` under this name; None for one we have no answer to."""
    if name == "Scheduling":
        from torch._inductor.codegen.cpp import CppScheduling

        return CppScheduling
    if name == "PythonWrapperCodegen":
        return _wrapper()
    if name == "CppWrapperCodegen":
        from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

        return CppWrapperCpu
    if name == "WrapperFxCodegen":
        from torch._inductor.codegen.wrapper_fxir import WrapperFxCodegen

        return WrapperFxCodegen
    return None


def _wrapper() -> Any:
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.virtualized import V

    class NpuWrapper(PythonWrapperCodegen):
        """Calls the generated C++ kernels as for the host."""

        @staticmethod
        def create(is_subgraph: bool, subgraph_name: Any, parent_wrapper: Any, partition_signatures: Any = None) -> Any:
            if is_subgraph:
                return PythonWrapperCodegen.create(is_subgraph, subgraph_name, parent_wrapper, partition_signatures)
            return NpuWrapper()  # type: ignore[no-untyped-call]

        def make_allocation(self, name: str, device: torch.device, *rest: Any, **options: Any) -> str:
            line = str(super().make_allocation(name, device, *rest, **options))  # type: ignore[no-untyped-call]
            # torch writes the kind alone for a device that it does not know, which is the current card
            return line.replace("device='npu'", f"device='{device}'")

        def _generate_kernel_call_helper(
            self, kernel_name: str, call_args: Any, *, device: Any = None, **rest: Any
        ) -> Any:
            device = device or V.graph.get_current_device_or_throw()
            if device.type == "npu":
                device = torch.device("cpu")
            return super()._generate_kernel_call_helper(kernel_name, call_args, device=device, **rest)

    return NpuWrapper
