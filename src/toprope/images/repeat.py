"""Comparison of a record with the engine that repeats it: the model's files, the device, versions.

`Engine.differences` calls it for `toprope edit --repeat`. The record is made in `images.results`; those of earlier
versions lack some of its parts. The sentences are free. Tests: tests/images/test_images_masks.py,
tests/images/test_images_cli.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toprope.images.results import versions

__all__ = ["differences"]


def differences(record: Mapping[str, Any], files: Mapping[str, Any], engine: Mapping[str, Any]) -> list[str]:
    """Compare an engine with a record, in sentences about each difference.

    Args:
        record: the record next to a picture.
        files: the model's files from `toprope.images.results.files_of`.
        engine: result of `Engine.describe`.
    """
    found = []
    before = record.get("model_files") or {}
    other = [
        name for name in sorted({*before, *files})
        if before.get(name) != files.get(name) and (before.get(name) or {}).get("sha256_of") != "file"
    ]  # fmt: skip
    if other:
        found.append(f"the model is not the one of the record: {', '.join(other[:3])}{', ...' if other[3:] else ''}")
    was = record.get("engine") or {}
    for name in ("device_name", "dtype"):
        if was.get(name) != engine.get(name):
            found.append(f"the {name.replace('_', ' ')} is {engine.get(name)}, and was {was.get(name)}")
    packages = record.get("versions") or {}
    changed = [f"{name} {version}" for name, version in versions().items() if packages.get(name) != version]
    if changed:
        found.append(f"versions differ, here are {', '.join(changed)}")
    return found
