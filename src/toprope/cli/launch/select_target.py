"""The card that a program of `toprope run` gets: the options and settings, compared with what the machine has.

Called by `cli.run` before anything is started; reports read `Choice`. The rules are those that docs/run.md promises:
options go before settings, a search for a real card is made only where its answer matters, and nothing that was asked
for is dropped in silence. tests/cli/test_choose.py has every combination, tests/cli/test_cli_start.py the cards of
`toprope start`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from toprope.errors import CardError, SettingError, UsageError
from toprope.messages import Message
from toprope.settings import Settings
from toprope.sim.spec import SimSpec

__all__ = ["Choice", "DeviceOption", "Probe", "choose"]


class DeviceOption(StrEnum):
    """The values of --device."""

    AUTO = "auto"
    NPU = "npu"
    SIM = "sim"
    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True)
class Probe:
    """The result of a search for a real card.

    Attributes:
        state: "works"; "no card" (torch_npu loads and sees none); "broken" (installed, cannot be used);
            "not installed".
        version: version of torch_npu; empty when it is not known.
        count: number of cards.
        name: name of the first card.
        reason: why torch_npu is broken, in one line.
        loads: whether one that is broken can be imported.
    """

    state: str
    version: str = ""
    count: int = 0
    name: str = ""
    reason: str = ""
    loads: bool = False

    @property
    def text(self) -> str:
        """The finding as one sentence without a full stop."""
        name = f"torch_npu {self.version}".strip()
        if self.state == "works":
            return Message("{name} works and sees {count} x {card}", name=name, count=self.count, card=self.name)
        if self.state == "no card":
            return Message("{name} works but sees no card", name=name)
        if self.state == "broken" and self.loads:
            return Message("{name} can be imported, and yet there is no NPU: {reason}", name=name, reason=self.reason)
        if self.state == "broken":
            return Message("{name} is installed but cannot be loaded: {reason}", name=name, reason=self.reason)
        return Message("torch_npu is not installed")


@dataclass(frozen=True)
class Choice:
    """The card that a program gets.

    Attributes:
        device: "sim" for the simulated card, "npu" for the real one, "cuda" or "cpu" for none.
        spec: the simulated cards; None without.
        probe: what the search for a real card found; None where nothing was searched for.
        automatic: whether toprope chose, and not the user.
        begun: whether these are the simulated cards that `toprope start` began.
    """

    device: str
    spec: SimSpec | None = None
    probe: Probe | None = None
    automatic: bool = False
    begun: bool = False


def choose(
    asked: DeviceOption | None,
    *,
    settings: Settings,
    probe: Callable[[], Probe],
    begun: str = "",
    **card: str | int | None,
) -> Choice:
    """The card for a program.

    Args:
        asked: --device; None leaves it to the settings.
        settings: what the options leave open: the device, and the simulated card.
        probe: the search for a real card; called only where its answer matters.
        begun: the simulated cards that `toprope start` began, as TOPROPE_SIM spells them; "" for none.
        card: attributes of the simulated card as options gave them: --chip, --count, --hbm, --torch-npu, --numerics;
            None where one was not given.

    Raises:
        UsageError: the options contradict each other or what was begun, or one of them, or a setting, cannot be read.
        CardError: a real card was asked for and there is none that works.
    """
    card = {name: value for name, value in card.items() if value is not None}
    given = [f"--{name.replace('_', '-')}" for name in card]
    if asked is None:
        asked = DeviceOption.AUTO if given else _from_settings(settings)
    if asked is DeviceOption.AUTO and not {"chip", "torch_npu", "numerics"}.isdisjoint(card):
        asked = DeviceOption.SIM
    if asked not in (DeviceOption.SIM, DeviceOption.AUTO):
        if given:
            raise UsageError(
                f"{' and '.join(given)} and --device {asked.value} contradict each other: "
                f"{'they describe' if len(given) > 1 else 'it describes'} the simulated card.",
                do=f"leave out --device, or {' and '.join(given)}",
            )
        if asked is not DeviceOption.NPU:
            return Choice(asked.value)
        found = probe()
        if found.state != "works":
            raise CardError(
                "there is no Ascend card that works.",
                looked_at=found.text,
                do=_advice(found, "rehearse with --device sim"),
            )
        return Choice("npu", probe=found)
    if begun:
        return Choice("sim", _check_started_cards(begun, card, given), begun=True)
    spec = _spec(card, settings)
    if asked is DeviceOption.SIM:
        return Choice("sim", spec)
    found = probe()
    if found.state != "works":
        return Choice("sim", spec, found, automatic=True)
    if given:
        raise UsageError(
            f"{' and '.join(given)} can only be had of the simulated card, and this machine has a real one.",
            looked_at=found.text,
            do=f"add --device sim, or leave out {' and '.join(given)}",
        )
    return Choice("npu", probe=found, automatic=True)


def _check_started_cards(begun: str, card: Mapping[str, str | int | None], given: list[str]) -> SimSpec:
    """The cards of `toprope start`: options may repeat what they are, but not ask for others."""
    spec = SimSpec.parse(begun)
    asked = spec.changed(**card, force=True)
    if (asked.chip, asked.count, asked.hbm) != (spec.chip, spec.count, spec.hbm):
        raise UsageError(
            f"{' and '.join(given)} {'do' if len(given) > 1 else 'does'} not fit the cards that were started.",
            looked_at=f"toprope start began {spec.count} x {spec.chip}"
            + ("" if spec.hbm is None else f" with {spec.hbm} bytes each"),
            do=f"leave out {' and '.join(given)}, or end what was started with toprope stop (yr stop)",
        )
    return asked


def _from_settings(settings: Settings) -> DeviceOption:
    """The device that the settings name. They say "npu" for a simulated card too, so that is left to the machine."""
    kind = (settings.device or "auto").partition(":")[0]
    if kind not in list(DeviceOption):
        raise SettingError(
            f"{settings.device!r} is not a device for a program.",
            looked_at=settings.origins.get("device", ""),
            do=f"use {', '.join(DeviceOption)}, or give --device",
        )
    return DeviceOption.AUTO if kind == "npu" else DeviceOption(kind)


def _spec(card: Mapping[str, str | int | None], settings: Settings) -> SimSpec:
    base = SimSpec.parse(settings.sim) if settings.sim else SimSpec()
    if "chip" in card:
        base = replace(base, hbm=None)  # the memory in the settings goes with the chip there
    # the user, or the search for a real card, has decided: nothing is left to refuse
    spec = base.changed(**card, force=True)
    spec.capacity  # noqa: B018  raises where no public figure is known and none was given
    return spec


def _advice(found: Probe, otherwise: str) -> str:
    if found.state == "broken":
        from toprope.device.host.libraries import advice  # `toprope run --help` needs none of it

        return f"{advice(found.reason)}, or {otherwise}"
    if found.state == "no card":
        return f"check npu-smi info, the driver, /dev/davinci* and ASCEND_RT_VISIBLE_DEVICES, or {otherwise}"
    return otherwise
