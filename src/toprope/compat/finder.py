"""Finders on sys.meta_path that make foreign module names importable, and their installation in a process.

A facade is a file or folder of this package that is importable under a foreign name; `FACADES` lists them.
`FacadeFinder` is at the end of sys.meta_path, so a real package always wins. In a process that is to have the simulated
card, `CardFinder` is in front, for two names only: a real torch_npu and the simulated card cannot be in one process.

Called by site/sitecustomize.py at the start of every Python process of a run (so it imports nothing but the import
system), by `toprope.compat.install` and by the pytest plugin. Methods of finders are those of importlib; the variables
are set by `cli.launch.child_process`. The order in `install_for_run` matters: redefining torch.cuda comes last. Tests:
tests/compat/test_finder.py, tests/compat/test_pytest_plugin.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING

from toprope.compat import fatal_error, parallel_import
from toprope.compat.parallel_import import ParallelFinder
from toprope.compat.torch_import import CARD_NAMES, TorchFinder
from toprope.errors import InstallError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, DistributionFinder

__all__ = ["FACADES", "CardFinder", "Facade", "FacadeFinder", "install", "real_spec", "uninstall"]

HERE = os.path.dirname(os.path.abspath(__file__))


class FacadeLoader(SourceFileLoader):
    """Loads a facade and marks it, `__toprope__`, as the simulator asks before it refuses a real package."""

    __toprope__ = True

    def exec_module(self, module: ModuleType) -> None:
        """Mark the module, then run its code."""
        vars(module)["__toprope__"] = True
        super().exec_module(module)


class Facade:
    """A foreign module name that toprope can stand in for.

    Attributes:
        name: the foreign top-level name.
        path: the file or folder with the code.
        distribution: the distribution that installs the real one, shown by importlib.metadata; empty for none.
        version_from: the distribution whose version (without a local part) the facade carries.
    """

    __slots__ = ("distribution", "name", "path", "version_from")

    def __init__(self, name: str, place: str, distribution: str = "", version_from: str = "") -> None:
        self.name = name
        self.path = os.path.join(HERE, place)
        self.distribution = distribution
        self.version_from = version_from

    def spec(self) -> ModuleSpec | None:
        """The spec with which the import system loads it; None when its code is not there."""
        folder = os.path.isdir(self.path)
        code = os.path.join(self.path, "__init__.py") if folder else self.path
        if not os.path.isfile(code):
            return None
        return spec_from_file_location(
            self.name,
            code,
            loader=FacadeLoader(self.name, code),
            submodule_search_locations=[self.path] if folder else None,
        )

    def is_loaded(self) -> bool:
        """True if the module of this name in this process is the facade and not a real package."""
        spec = getattr(sys.modules.get(self.name), "__spec__", None)
        return spec is not None and (spec.origin or "").startswith(self.path)


FACADES: dict[str, Facade] = {
    facade.name: facade
    for facade in (
        Facade("torch_npu", "torch_npu", distribution="torch-npu", version_from="torch"),
        Facade("torchair", "torchair"),
        Facade("acl", "acl"),
        Facade("apt_model", "apt_model"),
        Facade("device_utils", "device_utils.py"),
        Facade("yr", "yr"),
        Facade("dataflow", "dataflow"),
    )
}
"""Every facade by its foreign name. A new one is one line here and its file or folder next to this file."""


class FacadeFinder:
    """Finds facades, and their distributions, where no finder before it on sys.meta_path finds the name."""

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The facade of this name.

        Raises:
            ModuleNotFoundError: an import statement names a submodule that a loaded facade does not have.
        """
        facade = FACADES.get(fullname.partition(".")[0])
        if facade is None:
            return None
        if fullname == facade.name:
            return facade.spec()
        if facade.is_loaded() and _asked_by_import():
            from toprope.compat.missing import note_missing, of_the_real_one

            text = f"No module named {fullname!r}: toprope's {facade.name} does not have this API"
            why = of_the_real_one(fullname)
            text = f"{text}: {why}" if why else text
            note_missing(fullname, text)
            raise ModuleNotFoundError(text, name=fullname)
        return None

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """The distributions of facades whose real package is not there, for importlib.metadata."""
        return _distributions((facade for facade in FACADES.values() if not _found_elsewhere(facade, self)), context)


class CardFinder:
    """Finds, in front of real packages, the facades that belong to the simulated card."""

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The facade of this name; never a submodule, which the facade's own folder gives."""
        return FACADES[fullname].spec() if fullname in CARD_NAMES and fullname in FACADES else None

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """The distributions of these facades; importlib.metadata then leaves out real ones of the same name."""
        return _distributions((FACADES[name] for name in CARD_NAMES if name in FACADES), context)


_OURS = (FacadeFinder, CardFinder, ParallelFinder, TorchFinder)


def real_spec(name: str) -> ModuleSpec | None:
    """Path of an installed real package of this top-level name; None when there is none. Imports nothing."""
    return _first_spec(name, (finder for finder in sys.meta_path if not isinstance(finder, _OURS)))


def install(*, simulated_card: bool = False) -> None:
    """Make the facades importable in this process, and nn.DataParallel run on cards; a second call changes nothing.

    Args:
        simulated_card: whether this process is to have the simulated card: torch_npu and torchair are then served
            even where real ones are installed, and `import torch` installs the card that TOPROPE_SIM describes.

    Raises:
        InstallError: the simulated card is asked for after a real torch_npu was loaded; nothing is installed.
    """
    if simulated_card:
        for name in CARD_NAMES:
            if name in sys.modules and not (name in FACADES and FACADES[name].is_loaded()):
                raise InstallError(
                    f"a real {name} is already loaded in this process.",
                    do="call toprope.compat.install(simulated_card=True) before it is imported, or use `toprope run`",
                )
        if not any(isinstance(finder, CardFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, CardFinder())
        if not any(isinstance(finder, TorchFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, TorchFinder(simulated_card=True))
    if not any(isinstance(finder, FacadeFinder) for finder in sys.meta_path):
        sys.meta_path.append(FacadeFinder())
    parallel_import.install()


def install_for_run() -> None:
    """Install what the variables that `toprope run` set for this process ask for.

    TOPROPE_SIM: the facades and the simulated card. TOPROPE_DEVICE=cpu or cuda: the facades and a `torch.npu` that
    says there is no card. Otherwise the facades.
    """
    # a process that outlives the run finds the folder for counters gone
    if not os.path.isdir(os.environ.get("TOPROPE_RUN_DIR", "")):
        os.environ.pop("TOPROPE_RUN_DIR", None)
    if os.environ.get("TOPROPE_LOG"):
        from toprope.settings import Settings

        Settings.load().apply_log()
    simulated = bool(os.environ.get("TOPROPE_SIM"))
    if simulated:
        fatal_error.install_for_run()
    install(simulated_card=simulated)
    kind = os.environ.get("TOPROPE_DEVICE", "").partition(":")[0]
    # a real torch_npu gives torch.npu itself, and refuses to when there is one already
    if not simulated and kind in ("cpu", "cuda") and real_spec("torch_npu") is None:
        sys.meta_path.insert(0, TorchFinder(simulated_card=False))
    if os.environ.get("TOPROPE_FROM_CUDA"):
        from toprope.compat import cuda

        cuda.install_for_run()  # last, so that it acts when the card is there
    from toprope.compat import modes_import

    modes_import.install_for_run()


def uninstall() -> None:
    """Take the finders away again, and give torch its own functions back. Imported facades stay imported."""
    parallel_import.uninstall()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _OURS)]


def _first_spec(name: str, finders: Iterable[object]) -> ModuleSpec | None:
    for finder in finders:
        find_spec = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find_spec(name, None) if find_spec else None
        if spec is not None:
            return spec
    return None


def _found_elsewhere(facade: Facade, finder: FacadeFinder) -> bool:
    others = (other for other in sys.meta_path if other is not finder and not isinstance(other, TorchFinder))
    return _first_spec(facade.name, others) is not None


def _distributions(facades: Iterable[Facade], context: DistributionFinder.Context) -> Iterator[Distribution]:
    # "path" is there when one folder is asked about (as pip does): a facade is installed in none
    if "path" in vars(context):
        return
    from toprope.compat.distribution import distribution, same_name

    for facade in facades:
        if facade.distribution and (context.name is None or same_name(context.name, facade.distribution)):
            found = distribution(facade.name, facade.path, facade.distribution, facade.version_from)
            if found is not None:
                yield found


def _asked_by_import() -> bool:
    """True if an import asked the finder, and not importlib.util.find_spec, which wants None, no error.

    The import system offers no other place to say why a submodule is not there. Where the frames look different, the
    answer is no, and Python's own message is shown.
    """
    try:
        frame = sys._getframe(3)
    except ValueError:
        return False
    return frame.f_code.co_name == "_find_and_load_unlocked"
