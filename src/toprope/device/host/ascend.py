"""The Ascend parts of a machine, read from files and variables alone: device files, driver, CANN, masks, container.

Nothing is loaded or started, so it works even if everything else is broken: keep it so. Called by
`device.doctor.collect`, and by `device.npu` for its errors. Paths and forms of files are the driver's and CANN's; texts
are translated (locale/zh.po). Tests: tests/device/test_device_ascend.py, with folders that are laid out so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toprope.messages import Message, joined
from toprope.visible_devices import CONTAINER_VARIABLE, VARIABLE, npu_map, visible_cards

__all__ = ["AscendMachine", "look_at_machine", "mask_text"]

_NODE = re.compile(r"davinci(\d+)")
_CANN_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_CANN_FOLDERS = ("usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/cann", "usr/local/Ascend/latest")
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")


@dataclass(frozen=True)
class AscendMachine:
    """The parts that were found.

    Attributes:
        cards: the numbers in the names of the device files /dev/davinci0, ..., rising.
        refused: those of them that this user may not open.
        owner: "user:group" of the first that is refused.
        manager: whether /dev/davinci_manager is there, which the driver needs too.
        driver: the driver's version; "" where it is not installed.
        cann: CANN's version, where its environment is set; "" otherwise.
        cann_folder: where CANN is installed, whether its environment is set or not; "" where it was not found.
        container: whether this is a container.
        mask: ASCEND_RT_VISIBLE_DEVICES; None where it is not set.
        granted: ASCEND_VISIBLE_DEVICES; None where it is not set.
    """

    cards: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    owner: str = ""
    manager: bool = False
    driver: str = ""
    cann: str = ""
    cann_folder: str = ""
    container: bool = False
    mask: str | None = None
    granted: str | None = None

    @property
    def text(self) -> str:
        """The facts in one line, for an error."""
        cards = joined(", ", (f"/dev/davinci{card}" for card in self.cards[:4])) + (
            ", ..." if len(self.cards) > 4 else ""
        )
        parts = [
            f"CANN {self.cann}" if self.cann else self._cann_without_environment(),
            Message("driver {driver}", driver=self.driver) if self.driver else Message("no driver"),
            cards or Message("no /dev/davinci*"),
            "" if self.manager or not self.cards else Message("no /dev/davinci_manager"),
            Message("you may not open {refused} ({owner})", refused=_nodes(self.refused), owner=self.owner)
            if self.refused
            else "",
            self.mask_text(len(self.cards)),
            f"{CONTAINER_VARIABLE}={self.granted}" if self.granted is not None else "",
            Message("in a container") if self.container else "",
        ]
        return joined(", ", (part for part in parts if part))

    def mask_text(self, count: int | None) -> str:
        """The mask and what it shows of a number of cards (None: not known); "" where none is set."""
        return mask_text(self.mask, count)

    def why_no_card(self) -> tuple[str, str]:
        """Return why working software shows no card, and what to do: a sentence each, without a full stop."""
        if not self.cards:
            if self.container:
                return (
                    Message("there is no /dev/davinci* in this container"),
                    Message(
                        "start the container with the cards (--device /dev/davinci0 --device "
                        "/dev/davinci_manager --device /dev/devmm_svm --device /dev/hisi_hdc, or Ascend's "
                        "container runtime and {container_variable})",
                        container_variable=CONTAINER_VARIABLE,
                    ),
                )
            return (
                Message("there is no /dev/davinci*{driver}", driver="" if self.driver else Message(", and no driver")),
                Message("check that the machine has a card (lspci, npu-smi info) and install its driver"),
            )
        if len(self.refused) == len(self.cards):
            return (
                Message("you may not open {refused}, owned by {owner}", refused=_nodes(self.refused), owner=self.owner),
                Message("let an administrator add you to the group {owner}", owner=self.owner.partition(":")[2]),
            )
        if not self.manager:
            return (
                Message("there is no /dev/davinci_manager"),
                Message("give it to the container, or install the driver")
                if self.container
                else Message("install the driver"),
            )
        seen = npu_map(self.mask, None, self.cards)
        if self.mask is not None and not seen:
            inside = joined(", ", (str(each) for each in range(len(self.cards))))
            return (
                Message(
                    "{variable}={mask} shows none of {cards} cards: {problem}",
                    variable=VARIABLE,
                    mask=self.mask,
                    cards=len(self.cards),
                    problem=seen.problem,
                ),
                Message(
                    "unset {variable} or list some of {inside}, rising, before the program starts",
                    variable=VARIABLE,
                    inside=inside,
                ),
            )
        return (
            Message(
                "{cards} {are} there, but the driver shows none",
                cards=_nodes(self.cards),
                are="is" if len(self.cards) == 1 else "are",
            ),
            Message("check npu-smi info, and that driver and CANN belong together"),
        )

    def _cann_without_environment(self) -> str:
        return (
            Message("CANN in {cann_folder}, its environment not set", cann_folder=self.cann_folder)
            if self.cann_folder
            else Message("no CANN")
        )


def mask_text(mask: str | None, count: int | None) -> str:
    """ASCEND_RT_VISIBLE_DEVICES and what it shows of a number of cards (None: not known); "" where it is not set."""
    if mask is None:
        return ""
    if not count:
        return f"{VARIABLE}={mask}"
    seen = visible_cards(mask, count)
    return Message(
        "{variable}={mask} ({cards} of {count} cards{why})",
        variable=VARIABLE,
        mask=mask,
        cards=len(seen.cards),
        count=count,
        why=Message(": {problem}", problem=seen.problem) if seen.problem else "",
    )


def look_at_machine(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> AscendMachine:
    """Look at this machine.

    Args:
        root: where its file system begins; another folder in tests.
        environment: its variables; None for this process's own.
    """
    environment = os.environ if environment is None else environment
    cards = sorted(_numbers(root / "dev"))
    refused = [card for card in cards if not os.access(root / f"dev/davinci{card}", os.R_OK | os.W_OK)]
    homes = [Path(environment[name]) for name in _CANN_HOMES if environment.get(name)]
    folders = [*homes, *(root / folder for folder in _CANN_FOLDERS)]
    return AscendMachine(
        cards=tuple(cards),
        refused=tuple(refused),
        owner=_owner(root / f"dev/davinci{refused[0]}") if refused else "",
        manager=(root / "dev/davinci_manager").exists(),
        driver=_version_in(root / "usr/local/Ascend/driver/version.info", "Version"),
        cann=next((version for version in map(_cann_version, homes) if version), ""),
        cann_folder=next((str(folder) for folder in folders if folder.is_dir()), ""),
        container=any((root / mark).exists() for mark in _CONTAINER_MARKS) or "KUBERNETES_SERVICE_HOST" in environment,
        mask=environment.get(VARIABLE),
        granted=environment.get(CONTAINER_VARIABLE),
    )


def _nodes(cards: Iterable[int]) -> str:
    names = [f"/dev/davinci{card}" for card in cards]
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _numbers(folder: Path) -> list[int]:
    try:
        found = [_NODE.fullmatch(name) for name in os.listdir(folder)]
    except OSError:
        return []
    return [int(each[1]) for each in found if each]


def _owner(path: Path) -> str:
    """Owner and group of a file, as names or else as numbers."""
    try:
        return f"{path.owner()}:{path.group()}"
    except (OSError, KeyError):  # a number without a name, as in a container
        try:
            stat = path.stat()
        except OSError:
            return "not known"
        return f"{stat.st_uid}:{stat.st_gid}"


def _cann_version(home: Path) -> str:
    """Read CANN's version from its install files, in its folder or in its subfolder for the processor."""
    try:
        files = sorted([*home.glob("ascend_*_install.info"), *home.glob("*/ascend_*_install.info")])
    except OSError:
        return ""
    return next((version for version in (_version_in(file, "version") for file in files) if version), "")


def _version_in(file: Path, key: str) -> str:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition("=")[2].strip() for line in lines if line.startswith(f"{key}=")), "")
