"""Results with their settings, for display and for the form.

Used by the controller and the page. It reads the records of `images.results`, also those of earlier versions and those
inside pictures of strangers: a part that is missing is no error. Tests: tests/images/test_images_web.py,
tests/images/test_images_messages.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprope.images.request import KNOBS
from toprope.images.web.form import FIELDS, seed_text

__all__ = ["Entry", "form_of", "loras_of", "parameters", "settings_missing"]

SHOWN = ("instruction", "negative", "steps", "guidance", "image_guidance", "refine_strength", "cfg_norm", "size", "fit")


@dataclass(frozen=True)
class Entry:
    """One picture that was made.

    Attributes:
        name: name of its source for the client.
        picture: the file of the result.
        sidecar: the file with its record.
        seed: seed of this picture.
        record: everything needed to repeat it.
        before: the file of the edited picture, for comparison with the result.
    """

    name: str
    picture: Path
    sidecar: Path
    seed: int
    record: Mapping[str, Any]
    before: Path | None = None


def parameters(entry: Entry) -> dict[str, Any]:
    """Settings of an entry for display: first the knobs, then model, device and other facts."""
    record = entry.record
    request, engine = record.get("request", {}), record.get("engine", {})
    found: dict[str, Any] = {"source": entry.name, "seed": str(entry.seed)}
    found |= {name: request[name] for name in SHOWN if request.get(name) not in (None, "")}
    if engine.get("loras"):
        found["loras"] = ", ".join(f"{each['name']} at {each['scale']:g}" for each in engine["loras"])
    for name in ("device", "device_name", "dtype"):
        if engine.get(name):
            found[name.replace("_", " ")] = engine[name]
    attention = (engine.get("attention") or {}).get("path")
    if attention:
        found["attention"] = attention
    refinement = record.get("refinement")
    if refinement:
        found["instruction as written"] = refinement.get("given", "")
        found["reworded"] = "yes" if refinement.get("refined") else f"no: {refinement.get('reason', '')}"
    if record.get("notices"):
        found["notices"] = record["notices"]
    found["seconds"] = record.get("seconds")
    return found


def form_of(record: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """The values of a form that asks for the same picture, by the names of `FIELDS`, with "loras" and "scales".

    Args:
        record: the picture's record, from its sidecar or from the file itself.
        known: paths of LoRAs by name.
    """
    request = record.get("request") or {}
    found = {name: request[name] for name in FIELDS if request.get(name) is not None}
    loras = loras_of(record, known)
    asked = {"seed": seed_text(record.get("seed", request.get("seed"))), "num_images": 1, "refine": False}
    return {**found, **asked, "loras": [name for name, _ in loras], "scales": [scale for _, scale in loras]}


def settings_missing(record: Mapping[str, Any], known: Mapping[str, str], options: Sequence[str]) -> list[str]:
    """The settings of a record that the form does not have, for display.

    Args:
        record: a picture's record.
        known: paths of LoRAs by name.
        options: the model's knobs.
    """
    request = record.get("request") or {}
    beyond = [name for name in request if name not in (*FIELDS, "image") or (name in KNOBS and name not in options)]
    usual = {"generator_device": "cpu"}
    found = [f"{name} {request[name]}" for name in beyond if request[name] != usual.get(name)]
    names = [name for name, _ in loras_of(record, known)]
    used = (record.get("engine") or {}).get("loras") or ()
    return found + [f"LoRA {each.get('name')}" for each in used if each.get("name") not in names]


def loras_of(record: Mapping[str, Any], known: Mapping[str, str]) -> list[tuple[str, float]]:
    """The LoRAs of a record that can still be selected: names and scales.

    Args:
        record: a picture's record. Records inside pictures have a LoRA's file name without its folder.
        known: paths by name.
    """
    whole = {str(Path(path).resolve()): name for name, path in known.items()}
    short = {Path(path).name: name for name, path in known.items()}
    used = (record.get("engine") or {}).get("loras") or ()
    found = []
    for each in used:
        path = str(each.get("path", ""))
        name = whole.get(str(Path(path).resolve())) if Path(path).parent != Path() else short.get(path)
        if name is not None:
            found.append((name, float(each.get("scale", 1))))
    return found
