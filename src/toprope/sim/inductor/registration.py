"""Registration of the card with TorchDynamo and Inductor, when a program imports them.

Called when the card is installed (installation/installer.py). Tests: tests/sim/simulated/test_inductor.py.
"""

from __future__ import annotations

from typing import Any

from toprope.imports import after_import

__all__ = ["register"]


def register() -> None:
    """Tell the compiler about npu as soon as a program uses it; importing it takes seconds."""
    import torch

    from toprope.sim.npu._graph_tree_state import npugraph_mark_step_begin

    torch.compiler.npugraph_mark_step_begin = npugraph_mark_step_begin  # type: ignore[attr-defined]
    after_import("torch._dynamo.device_interface", _register_interface)
    after_import("torch._inductor.compile_fx", _lower_as_host)
    after_import("torch._dynamo.backends.registry", _register_backends)


def _register_backends() -> None:
    """Name the backends that torch.compile knows where torch_npu is installed."""
    from torch._dynamo.backends.registry import register_backend

    from toprope.sim.inductor.npugraphs_backend import npugraphs

    register_backend(_npu, "npu")
    register_backend(_npugraph_ex, "npugraph_ex")
    register_backend(npugraphs, "npugraphs")


def _npu(module: Any, inputs: Any, **options: Any) -> Any:
    return _backend("max-autotune")(module, inputs, **options)


def _npugraph_ex(module: Any, inputs: Any, **options: Any) -> Any:
    return _backend("npugraph_ex")(module, inputs, **options)


def _backend(mode: str) -> Any:
    from toprope.sim.graph.backend import get_npu_backend
    from toprope.sim.graph.config import CompilerConfig

    config = CompilerConfig()
    config.mode = mode
    return get_npu_backend(compiler_config=config)


def _register_interface() -> None:
    import torch
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
            return int(npu.current_stream(device_idx).npu_stream)

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


def _lower_as_host() -> None:
    from toprope.sim.inductor import host_graphs

    host_graphs.register()
