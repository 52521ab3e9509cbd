"""Installation of the simulated cards: build and load the C++ part, register the device `npu`, make `torch.npu`.

`toprope.sim.install` calls it, and the import of torch does in a process with TOPROPE_SIM. All or nothing: an error
leaves torch as it was. What torch is to know about the card is registered in `_register`, and imports what it needs
there. Tests: tests/sim/test_sim_install.py and test_installation.py.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import resource
import sys
import threading
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from toprope import chips
from toprope.errors import EnvironmentProblem, InstallError
from toprope.sim import faults, run_record, state
from toprope.sim.installation import documents, host_operators
from toprope.sim.spec import SimSpec
from toprope.sim.state import installed
from toprope.sizes import gibibytes
from toprope.support import operators_on_card

if TYPE_CHECKING:
    from collections.abc import Callable

    from toprope.sim.native import Native
    from toprope.support.operators_on_card import Release

__all__ = ["autoload", "install"]

_log = logging.getLogger("toprope")
_lock = threading.RLock()

_PADDING = 32
"""Bytes that torch_npu adds to a request before it rounds it."""

_FIRST_WITHOUT_PADDING = 260
"""The first SocVersion (Ascend 950) on which it adds none."""


def install(
    chip: str = "910B3",
    count: int = 1,
    hbm: int | str | None = None,
    *,
    force: bool = False,
    refuse: bool = True,
    torch_npu: str | None = None,
    numerics: str = "host",
) -> None:
    """Give the torch of this process simulated Ascend cards: the device `npu` and the namespace `torch.npu`.

    Asking again for the same cards does nothing.

    Args:
        chip: name of the chip, such as "910B3".
        count: number of cards, 1 to 16.
        hbm: device memory of a card ("256MB", "1GiB" or bytes); None for the chip's own.
        force: install also where a real torch_npu is installed, which then must not be imported.
        refuse: let operators refuse the dtypes that the chip refuses (docs/refusals.md), with the vendor's text.
        torch_npu: version of torch_npu whose operators the card has (docs/operators_by_release.md); None for the
            newest for the installed torch.
        numerics: "card" rounds what products and convolutions take in float32 as the cube units do (docs/limits.md).

    Raises:
        UnknownChipError, UsageError, SizeError: what was asked for makes no sense.
        InstallError: this process already has other simulated cards, a real torch_npu or another device in the
            place torch keeps for one.
        BuildError: the native part cannot be built or loaded.

    Example:
        >>> import toprope.sim
        >>> toprope.sim.install("910B3", count=2)
        >>> import torch
        >>> torch.ones(2, device="npu:1").device
        device(type='npu', index=1)
    """
    _install(SimSpec.make(chip, count, hbm, force=force, refuse=refuse, torch_npu=torch_npu, numerics=numerics))


def autoload() -> None:
    """Install what TOPROPE_SIM asks for; nothing where it is not set. Called at the end of `import torch`."""
    text = os.environ.get("TOPROPE_SIM", "").strip()
    if not text:
        return
    collects = gc.isenabled()
    gc.disable()  # what is loaded here would bring about a search through all of torch's objects for garbage: 60 ms
    try:
        _install(SimSpec.parse(text))
    finally:
        if collects:
            gc.enable()


def _install(spec: SimSpec) -> None:
    with _lock:
        if (now := installed()) is not None:
            _refuse_other(now, spec)
            return
        capacity = spec.capacity
        _refuse_real(spec)
        try:
            import torch
        except ModuleNotFoundError as error:
            from toprope.extras import explained

            raise explained(error, "the simulated card") from None

        if (now := installed()) is not None:  # that import has installed what TOPROPE_SIM asks for
            _refuse_other(now, spec)
            return
        name = torch._C._get_privateuse1_backend_name()
        if name != "privateuseone":
            raise InstallError(
                f"torch has one place for a device of others, and {name!r} has taken it in this process.",
                do="start a process that does not import the package behind that device",
            )
        from toprope.sim import build
        from toprope.sim.native import load

        made = build.ensure()
        library = load(made.core, made.glue)
        chip = chips.get(spec.chip)
        padding = _PADDING if (chip.soc_version or 0) < _FIRST_WITHOUT_PADDING else 0
        if library.configure(spec.count, capacity, padding) != 0:
            raise _no_addresses(spec, capacity)
        library.set_cores(chip.cube_cores or 0, chip.vector_cores or 0)
        library.set_cache((chip.l2_mib or 0) * 2**20)
        release = operators_on_card.find_release(spec.torch_npu, torch.__version__)
        library.describe(
            chip.name.encode(), torch.__version__.encode(), int(spec.hbm is not None), release.branch.encode()
        )
        for code, text in _error_texts().items():
            library.set_error_text(code, text.encode())
        with documents.ready(made.folder, chip) as path:
            _load_documents(library, path, refuse=spec.refuse)
        with host_operators.ready(made.folder, release, chip) as path:
            _load_host_operators(library, path, release)
        run_record.join_run(library)
        _register(torch)
        state.set_installed(spec)
        from toprope.sim.npu.history import warn_of_expandable
        from toprope.sim.npu.npu_config import tell_units
        from toprope.sim.npu.utils import get_cann_version

        tell_units()
        torch.version.cann = get_cann_version() or "not known"  # type: ignore[attr-defined] # as torch_npu's collect_env
        faults.enter_from_environment()
        warn_of_expandable(os.environ.get("PYTORCH_NPU_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF", ""))
        _log.info("the simulated card is installed: %s", spec.format())


def _refuse_other(now: SimSpec, spec: SimSpec) -> None:
    if replace(now, force=False) != replace(spec, force=False):
        raise InstallError(
            f"this process already has {now.count} simulated {now.chip}; it cannot have {spec.count} {spec.chip} too.",
            f"installed: {now.format()}; asked for: {spec.format()}",
            "install once, or use a process for each kind of card",
        )


def _refuse_real(spec: SimSpec) -> None:
    real = sys.modules.get("torch_npu")
    if real is not None and not hasattr(real, "__toprope__"):
        raise InstallError(
            "the real torch_npu is loaded in this process; a simulated card cannot take its place.",
            f"torch_npu {getattr(real, '__version__', '?')} from {getattr(real, '__file__', '?')}",
            "install the simulated card before torch_npu is imported: TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from"
            " importing it, or use `toprope run --device sim`",
        )
    if spec.force or real is not None:
        return
    found = importlib.util.find_spec("torch_npu")
    if found is not None and found.origin is not None and not getattr(found.loader, "__toprope__", False):
        raise InstallError(
            "a real torch_npu is installed here, and where it is, it wins.",
            str(found.origin),
            "run on the real card, or ask for the simulated one all the same: install(..., force=True)",
        )


def _no_addresses(spec: SimSpec, capacity: int) -> EnvironmentProblem:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return EnvironmentProblem(
        f"the system does not grant the addresses for {spec.count} cards of {gibibytes(capacity)}.",
        f"limit on the process's addresses (ulimit -v): {'none' if limit < 0 else gibibytes(limit)};"
        " /proc/sys/vm/overcommit_memory",
        "raise the limit, or simulate smaller cards: hbm=4GiB",
    )


def _error_texts() -> dict[int, str]:
    data = tomllib.loads(resources.files("toprope.sim").joinpath("error_codes.toml").read_text())
    return {int(code): entry["text"] for code, entry in data["codes"].items()}


def _load_documents(library: Native, path: Path, *, refuse: bool) -> None:
    """Have the core read what the chip's kernels take; also where nothing is refused, so that operators run alike."""
    error = library.load_documents(str(path).encode())
    if error:
        raise EnvironmentProblem("the vendor's documents cannot be read.", f"{path}: {os.strerror(error)}")
    library.check_composites()
    library.obey_documents(int(refuse))


def _load_host_operators(library: Native, path: Path, release: Release) -> None:
    error = library.load_host_operators(str(path).encode(), int(host_operators.refuses(release)))
    if error:
        raise EnvironmentProblem("the operators of torch_npu cannot be read.", f"{path}: {os.strerror(error)}")


def _register(torch: ModuleType) -> None:
    """Name the device, and give torch its namespace, methods (Tensor.npu, Module.npu, ...) and backend hccl."""
    if hasattr(getattr(torch, "npu", None), "__toprope_stand_in__"):
        del torch.npu  # the one that says there is no card
        sys.modules.pop("torch.npu", None)
    torch.utils.rename_privateuse1_backend("npu")
    from toprope.sim import npu

    torch._register_device_module("npu", npu)
    sys.modules["torch.npu"] = npu
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    torch.nn.parameter.UninitializedTensorMixin._allowed_methods.append(torch.Tensor.npu)
    from toprope.imports import after_import
    from toprope.sim import distributed
    from toprope.sim.inductor import flex_attention, registration
    from toprope.sim.installation import at_exit, dlpack
    from toprope.sim.npu.graphs import accelerator_graphs

    distributed.register(torch)
    dlpack.register()
    at_exit.register()
    flex_attention.register()
    registration.register()
    accelerator_graphs(True)
    after_import("torch.multiprocessing.reductions", _register_sharing)


def _register_sharing() -> None:
    """Let torch.multiprocessing hand device tensors over, as torch_npu does; host tensors go torch's own way."""
    import torch
    from torch.multiprocessing import reductions

    reduce_tensor, reduce_storage = reductions.reduce_tensor, reductions.reduce_storage

    def reduce(tensor: Any) -> Any:
        if tensor.device.type != "npu" or tensor.is_nested:  # torch takes the parts of a nested one
            return reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        return _sharing().reduce(tensor)

    def refuse(storage: Any) -> Any:
        if storage.device.type == "npu":
            raise RuntimeError("Cannot pickle NPU storage; try pickling a NPU tensor instead")
        return reduce_storage(storage)  # type: ignore[no-untyped-call]

    reductions.reduce_tensor, reductions.reduce_storage = reduce, refuse
    reductions.init_reductions()  # type: ignore[no-untyped-call]
    _put_storage_methods(torch.UntypedStorage, lambda storage: storage)
    _put_storage_methods(torch.TypedStorage, lambda storage: storage._untyped_storage)


def _put_storage_methods(kind: Any, untyped: Callable[[Any], Any]) -> None:
    """Give a class of storages torch_npu's methods for other processes, which import what they need when called."""

    def _share_npu_(self: Any) -> Any:
        return _sharing().share_storage(untyped(self))

    kind._share_npu_ = _share_npu_
    kind._new_shared_npu = staticmethod(lambda *given: _sharing().map_storage(*given))
    kind._release_ipc_counter_npu = staticmethod(
        lambda handle, offset, device="npu": _sharing().release_counter(handle, offset, device)
    )


def _sharing() -> ModuleType:
    from toprope.sim import sharing  # a process that rebuilds a tensor before it imports torch is importing it already

    return sharing
