"""The child process of `toprope doctor --images`: one tiny edit on the device that would be chosen, offline.

Started by `toprope.images.doctor.checks` with a file descriptor, to which it writes its result as a line of JSON;
`checks` reads the keys, so both change together. An error is a result, too: nothing may be raised from here. Tests:
tests/images/test_images_doctor.py.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from toprope.device.host.child_process import say

__all__ = ["main", "try_edit"]


def try_edit(folder: Path) -> dict[str, Any]:
    """Edit a picture twice with a tiny model with random weights.

    Args:
        folder: folder for the model.

    Returns:
        Facts for JSON: "device", "dtype", "attention", "seconds" of the second edit, and "repeatable", True if the same
        seed gave the same picture; or an "error".
    """
    from toprope.images import EditRequest, Engine
    from toprope.images.example import picture
    from toprope.images.runs.output import problem_of
    from toprope.images.tiny import write

    found: dict[str, Any] = {"doing": "write a tiny model"}
    try:
        model = write("ip2p", folder / "tiny")
        found["doing"] = "load it"
        request = EditRequest(picture(), "make it snow", steps=2, seed=3, max_pixels=1024)
        with Engine.open(model) as engine:
            found |= {"doing": "edit a picture", **_of(engine)}
            first = engine.edit(request)
            begin = time.perf_counter()
            second = engine.edit(request)
            found["seconds"] = round(time.perf_counter() - begin, 3)
            found |= {"attention": second.record["engine"]["attention"]["path"], "guard": first.record["guard"]}
            found["dtype"] = engine.describe()["dtype"]
        pictures = [each.pictures[0] for each in (first, second)]
        found["repeatable"] = pictures[0].tobytes() == pictures[1].tobytes()
        found["size"] = pictures[0].size == request.image.size
    except Exception as error:
        found["error"] = problem_of(error)
        return found
    del found["doing"]
    return found


def _of(engine: Any) -> dict[str, Any]:
    facts = engine.describe()
    return {name: facts[name] for name in ("device", "device_name", "simulated", "dtype")}


def main(channel: int) -> None:
    """Write the result to a file descriptor."""
    with tempfile.TemporaryDirectory(prefix="toprope-doctor-") as folder:
        found = try_edit(Path(folder))
    say(channel, "trial", found=found)
    say(channel, "end")


if __name__ == "__main__":
    main(int(sys.argv[1]))
