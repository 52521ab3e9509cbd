"""Whether pictures can be edited here: packages, and one tiny edit in a process of its own. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any

from toprope.device.doctor.finding import Finding
from toprope.device.host.child_process import Child, facts_in
from toprope.extras import advice

__all__ = ["NEEDED", "ImageFacts", "Trial", "diagnose", "rows"]

NEEDED = ("diffusers", "transformers", "accelerate", "peft", "pillow")
"""Packages of the extra `images`."""

BESIDE = {
    "gradio": ("images-no-gradio", "gradio is not installed: toprope ui needs it.", advice("ui")),
    "torchvision": (
        "images-no-torchvision",
        "torchvision is not installed: models of the family qwen need it, no others.",
        "install the one that belongs to your torch, with pip install --no-deps torchvision==...",
    ),
}
"""Packages without which some of it does not go: the finding that says so."""


@dataclass(frozen=True)
class ImageFacts:
    """What was looked at.

    Attributes:
        packages: versions of those that are installed, by name.
        trial: of one edit, see `toprope.images.doctor.selftest_child`; None where it was not tried.
        ended: how the process ended that tried it, where it said nothing.
    """

    packages: Mapping[str, str] = field(default_factory=dict)
    trial: Mapping[str, Any] | None = None
    ended: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {"packages": dict(self.packages), "trial": self.trial and dict(self.trial), "ended": self.ended}


class Trial:
    """A tiny edit in a process that starts now and is waited for later. A context, at whose end it is gone.

    Args:
        environment: its variables; this process's own when left out.
        wait: seconds that it has.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, wait: float = 60.0) -> None:
        self._packages = {name: found for name in (*NEEDED, *BESIDE) if (found := _version(name))}
        self._child: Child | None = None
        if any(name not in self._packages for name in NEEDED if name != "peft"):
            return
        variables = dict(os.environ if environment is None else environment)
        variables |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1"}
        self._child = Child(["-m", "toprope.images.doctor.selftest_child"], variables, wait=wait)

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.__exit__(kind, error, trace)

    def facts(self) -> ImageFacts:
        """What came of it."""
        if self._child is None:
            return ImageFacts(self._packages)
        lines, ended = self._child.lines()
        trial = next((fact["found"] for fact in facts_in(lines) if "found" in fact), None)
        return ImageFacts(self._packages, trial, ended)


def diagnose(facts: ImageFacts) -> tuple[Finding, ...]:
    """What is to be said about it. Pure."""
    found = []
    missing = [name for name in NEEDED if name not in facts.packages]
    if missing:
        found.append(
            Finding(
                "images-packages",
                f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: "
                + ("LoRAs need it." if missing == ["peft"] else "pictures cannot be edited."),
                (advice("images"),),
                problem=missing != ["peft"],
            )
        )
    if facts.ended:
        found.append(
            Finding(
                "images-unfinished",
                f"a tiny picture was to be edited in a process of its own, and {facts.ended}.",
                ("give it more time with --wait, or run toprope edit with a tiny model to see what it says",),
            )
        )
    trial = facts.trial or {}
    if error := trial.get("error"):
        doing = f"to {trial['doing']}{' on ' + trial['device'] if trial.get('device') else ''}"
        found.append(
            Finding(
                "images-edit",
                f"a tiny picture cannot be edited: {error['what']}",
                (error["do"],) if error.get("do") else (),
                looked_at=f"it failed {doing}" + (f"; {error['looked_at']}" if error.get("looked_at") else ""),
            )
        )
    elif trial and not (trial["repeatable"] and trial["size"]):
        what = "the same seed gave another picture" if trial["size"] else "the picture came back in another size"
        found.append(Finding("images-repeat", f"{what} on {trial['device']}.", looked_at=_trial_text(trial)))
    elif trial.get("guard"):
        found.append(
            Finding(
                "images-dtype",
                f"the picture was none in {trial['guard'][0]['dtype']}, and is one in {trial['dtype']}.",
                (f"give --dtype {trial['dtype']}, or leave it to the guard",),
                looked_at=str(trial["guard"][0].get("what", "")),
                problem=False,
            )
        )
    for name, (short, what, do) in BESIDE.items():
        if name not in facts.packages:
            found.append(Finding(short, what, (do,), problem=False))
    return tuple(found)


def rows(facts: ImageFacts) -> list[tuple[str, Sequence[str]]]:
    """What there is to see, as rows with a label and parts."""
    said = [f"{name} {facts.packages[name]}" if name in facts.packages else f"no {name}" for name in (*NEEDED, *BESIDE)]
    found: list[tuple[str, Sequence[str]]] = [("images", said)]
    if facts.trial and "error" not in facts.trial:
        found.append(("edit", [_trial_text(facts.trial)]))
    return found


def _trial_text(trial: Mapping[str, Any]) -> str:
    time_said = "" if trial["simulated"] else f", 2 steps in {trial['seconds']:.2f} s"
    same = "twice the same" if trial["repeatable"] else "twice, and not the same"
    simulated = " (simulated)" if trial["simulated"] else ""
    return f"{trial['device']}{simulated} ok: a tiny picture, {same}, {trial['dtype']}, {trial['attention']}{time_said}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
