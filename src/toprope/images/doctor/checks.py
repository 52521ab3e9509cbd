"""Doctor's check of image editing: packages, and one tiny edit in a separate process. Imports no torch.

Called by `cli.doctor`; the findings are those of `device.doctor.finding`, so that one report shows both. The names of
findings are read by scripts and in docs/doctor.md, and `NEEDED` repeats the extra `images` of pyproject.toml; texts are
translated (`Message`). Tests: tests/images/test_images_doctor.py.
"""

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
from toprope.messages import Message, joined

__all__ = ["NEEDED", "ImageFacts", "Trial", "diagnose", "rows"]

NEEDED = ("diffusers", "transformers", "accelerate", "peft", "pillow")
"""Packages of the extra `images`."""

OPTIONAL = {
    "gradio": ("images-no-gradio", Message("gradio is not installed: toprope ui needs it."), advice("ui")),
    "torchvision": (
        "images-no-torchvision",
        Message("torchvision is not installed: models of the family qwen need it, no others."),
        Message("install the one that belongs to your torch, with pip install --no-deps torchvision==..."),
    ),
}
"""Packages that only some functions need, with the finding for each."""


@dataclass(frozen=True)
class ImageFacts:
    """Facts of the check.

    Attributes:
        packages: versions of the installed packages, by name.
        trial: result of the tiny edit, see `toprope.images.doctor.selftest_child`; None if it was not tried.
        ended: how the process ended if it returned no result.
    """

    packages: Mapping[str, str] = field(default_factory=dict)
    trial: Mapping[str, Any] | None = None
    ended: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {"packages": dict(self.packages), "trial": self.trial and dict(self.trial), "ended": self.ended}


class Trial:
    """A tiny edit in a process that starts at once; `facts` waits for it. A context that ends the process.

    Args:
        environment: the process's variables; by default those of this process.
        wait: time limit in seconds.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, wait: float = 60.0) -> None:
        self._packages = {name: found for name in (*NEEDED, *OPTIONAL) if (found := _version(name))}
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
        """Wait for the edit, and return the facts."""
        if self._child is None:
            return ImageFacts(self._packages)
        lines, ended = self._child.lines()
        trial = next((fact["found"] for fact in facts_in(lines) if "found" in fact), None)
        return ImageFacts(self._packages, trial, ended)


def diagnose(facts: ImageFacts) -> tuple[Finding, ...]:
    """Make the findings of the check. Pure."""
    found = []
    missing = [name for name in NEEDED if name not in facts.packages]
    if missing:
        found.append(
            Finding(
                "images-packages",
                Message(
                    "{missing} {are} not installed: {effect}",
                    missing=joined(" and ", missing),
                    are="is" if len(missing) == 1 else "are",
                    effect=Message("LoRAs need it.") if missing == ["peft"] else Message("pictures cannot be edited."),
                ),
                (advice("images"),),
                problem=missing != ["peft"],
            )
        )
    if facts.ended:
        found.append(
            Finding(
                "images-unfinished",
                Message("a tiny picture was to be edited in a process of its own, and {ended}.", ended=facts.ended),
                (Message("give it more time with --wait, or run toprope edit with a tiny model to see what it says"),),
            )
        )
    trial = facts.trial or {}
    if error := trial.get("error"):
        doing = Message(
            "to {doing}{place}",
            doing=trial["doing"],
            place=Message(" on {device}", device=trial["device"]) if trial.get("device") else "",
        )
        found.append(
            Finding(
                "images-edit",
                Message("a tiny picture cannot be edited: {what}", what=error["what"]),
                (error["do"],) if error.get("do") else (),
                looked_at=Message(
                    "it failed {doing}{facts}",
                    doing=doing,
                    facts=f"; {error['looked_at']}" if error.get("looked_at") else "",
                ),
            )
        )
    elif trial and not (trial["repeatable"] and trial["size"]):
        what = (
            Message("the same seed gave another picture")
            if trial["size"]
            else Message("the picture came back in another size")
        )
        found.append(
            Finding(
                "images-repeat",
                Message("{what} on {device}.", what=what, device=trial["device"]),
                looked_at=_trial_text(trial),
            )
        )
    elif trial.get("guard"):
        found.append(
            Finding(
                "images-dtype",
                Message(
                    "the picture was none in {first}, and is one in {dtype}.",
                    first=trial["guard"][0]["dtype"],
                    dtype=trial["dtype"],
                ),
                (Message("give --dtype {dtype}, or leave it to the guard", dtype=trial["dtype"]),),
                looked_at=str(trial["guard"][0].get("what", "")),
                problem=False,
            )
        )
    for name, (short, what, do) in OPTIONAL.items():
        if name not in facts.packages:
            found.append(Finding(short, what, (do,), problem=False))
    return tuple(found)


def rows(facts: ImageFacts) -> list[tuple[str, Sequence[str]]]:
    """The facts as rows for the doctor's table, each a label and its parts."""
    said = [
        f"{name} {facts.packages[name]}" if name in facts.packages else Message("no {package}", package=name)
        for name in (*NEEDED, *OPTIONAL)
    ]
    found: list[tuple[str, Sequence[str]]] = [(Message("images"), said)]
    if facts.trial and "error" not in facts.trial:
        found.append((Message("edit"), [_trial_text(facts.trial)]))
    return found


def _trial_text(trial: Mapping[str, Any]) -> str:
    """One line about the tiny edit that succeeded."""
    time_said = "" if trial["simulated"] else Message(", 2 steps in {seconds:.2f} s", seconds=trial["seconds"])
    same = Message("twice the same") if trial["repeatable"] else Message("twice, and not the same")
    simulated = Message(" (simulated)") if trial["simulated"] else ""
    return Message(
        "{device}{simulated} ok: a tiny picture, {same}, {dtype}, {attention}{time_said}",
        device=trial["device"],
        simulated=simulated,
        same=same,
        dtype=trial["dtype"],
        attention=trial["attention"],
        time_said=time_said,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
