"""Pytest plugin: `pytest --npu 910B3x2` runs tests on simulated cards, with torch_npu importable.

The entry point `pytest11` loads it into every pytest where toprope is installed. Without --npu it does nothing until a
test asks for the fixture `npu`: no torch is imported and nothing is changed. Names of hooks are pytest's; --npu, the
fixture and the attributes of `Npu` are an interface for users (docs/pytest.md). Tests:
tests/compat/test_pytest_plugin.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from toprope import __version__
from toprope.compat import finder
from toprope.errors import TopropeError

if TYPE_CHECKING:
    from toprope.sim.rehearsal.facts import Rehearsal
    from toprope.sim.rehearsal.recorder import Rehearsing

__all__ = ["Npu", "npu"]

_VARIABLES = ("TOPROPE_SIM", "PYTHONPATH")
_SITE = os.path.join(finder.HERE, "site")
_before = pytest.StashKey[dict[str, str | None]]()


@dataclass(frozen=True)
class Npu:
    """The value of the fixture `npu`.

    Attributes:
        device: the device to put tensors on: "npu:0".
        count: number of cards that the process sees.
        name: what torch.npu calls the card, such as "Ascend910B3".
        simulated: whether it is a simulated card.
    """

    device: str
    count: int
    name: str
    simulated: bool
    _rehearsing: Rehearsing | None = None

    @property
    def facts(self) -> Rehearsal:
        """The rehearsal of the test so far, on a simulated card; a test on a real card is skipped here."""
        if self._rehearsing is None:
            pytest.skip("a real card is not rehearsed; give --npu 910B3 for a simulated one")
        return self._rehearsing.so_far()

    @property
    def peak(self) -> int:
        """Most bytes that tensors held at once, with those in use when the test began."""
        return self.facts.peak

    @property
    def syncs(self) -> int:
        """Times that the host waited for a card."""
        return self.facts.syncs

    def assert_on_card(self) -> None:
        """Fail where a real card refuses an operator, runs one on the host, or may not have the memory."""
        __tracebackhide__ = True
        found = self.facts.of("refused", "host", "memory")
        assert not found, "\n".join(
            f"{one.file}:{one.line}: {one.text}{f'; {one.advice}' if one.advice else ''}" for one in found
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --npu."""
    parser.getgroup("toprope", "simulated Ascend NPU").addoption(
        "--npu",
        metavar="CARDS",
        help="run on simulated Ascend cards, such as 910B3, 910B3x2 or 910B3x2,hbm=1GiB",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Make the cards ready before the first conftest.py, which may import torch or torch_npu."""
    text = early_config.known_args_namespace.npu
    if text is not None:
        try:
            _simulate(early_config, text)
        except TopropeError as error:
            raise pytest.UsageError(f"--npu {text}: {error}") from None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give the variables back as they were; a card that torch has stays until the process ends."""
    before = config.stash.get(_before, None)
    if before is not None:
        finder.uninstall()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say on which cards the tests run."""
    text = config.getoption("npu")
    return None if text is None else f"npu: {text}, simulated by toprope {__version__}"


def _simulate(config: pytest.Config, text: str) -> None:
    """Let this process and its children have these cards as soon as they import torch."""
    import sys
    from dataclasses import replace

    from toprope.sim.spec import SimSpec

    # a simulated card that was named is wanted even if there is a real torch_npu
    spec = replace(SimSpec.parse(text), force=True)
    spec.capacity  # noqa: B018  raises where no public figure is known and none was given
    finder.install(simulated_card=True)
    config.stash[_before] = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ["TOPROPE_SIM"] = spec.format()
    # for child processes, as in a `toprope run`
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != _SITE]
    os.environ["PYTHONPATH"] = os.pathsep.join([_SITE, *entries])
    if "torch" in sys.modules:  # another plugin was earlier
        from toprope import sim

        sim.install(**vars(spec))


@pytest.fixture
def npu(request: pytest.FixtureRequest) -> Iterator[Npu]:
    """An NPU for the test, simulated or real; where there is none, the test is skipped.

    After the test the cards are waited for, so that an error of queued work is this test's, and cached memory is given
    back.
    """
    try:
        import torch
    except ModuleNotFoundError:
        pytest.skip("no NPU: torch is not installed")
    _load_real()
    cards = getattr(torch, "npu", None)
    if cards is None or not cards.is_available():
        pytest.skip("no NPU: there is no card that torch.npu sees; give --npu 910B3 for a simulated one")
    simulated = _is_simulated()
    cards.set_device(0)
    facts = "npu:0", cards.device_count(), cards.get_device_name(0), simulated
    if simulated:
        from toprope.sim.rehearsal.recorder import rehearse_test

        with rehearse_test() as rehearsing:
            yield Npu(*facts, rehearsing)
    else:
        yield Npu(*facts)
    for card in range(cards.device_count()):
        cards.synchronize(card)
    cards.empty_cache()


def _load_real() -> None:
    """Load a real torch_npu where one is installed, since torch may be set not to do so itself."""
    if finder.real_spec("torch_npu") is not None and not _is_simulated():
        try:
            import_module("torch_npu")
        except Exception as error:
            pytest.skip(f"no NPU: torch_npu is installed but cannot be loaded: {error}")


def _is_simulated() -> bool:
    from toprope.sim import installed

    return installed() is not None
