"""Stand-in for the engine, without a model: every step waits until the test releases it. Not a test.

Used by tests of `images.web`; its methods are the part of `Engine` that a worker calls.
"""

import threading
import time
from pathlib import Path

from toprope.errors import EditCancelled, UsageError
from toprope.images.results import EditResult
from toprope.progress import Step


class StandIn:
    """The part of `toprope.images.engine.Engine` that a controller uses.

    Attributes:
        edits: requests that were begun.
        threads: names of the threads that edited.
        loras: set last.
    """

    def __init__(self, steps=3, refiner=None, held=False):
        self.steps, self.refiner = steps, refiner
        self.edits, self.threads, self.loras, self.loras_set = [], set(), [], 0
        self.gone = False  # while a real one loads its model again
        self.closed = False
        self._go = threading.Semaphore(0) if held else None

    def let_go(self, steps=1):
        self._go.release(steps)

    def describe(self):
        if self.gone:
            raise UsageError("the engine is closed.", do="open another")
        return {
            "family": "stand-in",
            "pipeline": "StandInPipeline",
            "device": "npu:1",
            "device_name": "Ascend910B3",
            "simulated": True,
            "dtype": "bfloat16",
            "attention": {"path": "fused by the NPU"},
            "memory": {"rung": "none"},
            "loras": [
                {"name": Path(path).stem, "path": path, "scale": float(scale)}
                for path, _, scale in (each.rpartition(":") for each in self.loras)
            ],
            "refiner": self.refiner,
            "options": {"steps": self.steps, "guidance": 7.5, "negative": ""},
        }

    def memory(self):
        done = len(self.edits)
        return {"allocated": 1000 + done, "reserved": 2**21, "peak": 2**20 * done, "free": 2**30, "total": 2**31}

    def set_loras(self, loras):
        self.loras, self.loras_set = list(loras), self.loras_set + 1

    def edit(self, request, *, on_step, cancelled):
        from toprope.images.picture.files import open_picture

        self.edits.append(request)
        self.threads.add(threading.current_thread().name)
        opened = open_picture(request.image)
        if request.instruction == "fail":
            raise UsageError("it cannot be.", looked_at="this <b>", do="try something else")
        if request.instruction == "break":
            raise ZeroDivisionError("by zero")
        begin = time.perf_counter()
        of = request.steps or self.steps
        for number in range(1, of + 1):
            if self._go is not None:
                self._go.acquire()
            on_step(Step(number, of, time.perf_counter() - begin))
            if cancelled():
                raise EditCancelled(f"the edit was cancelled after {number} steps.")
        seed = 7 if request.seed is None else request.seed
        refinement = None
        if request.refine:
            refinement = {"refined": True, "instruction": f"refined: {request.instruction}"}
        asked = request.as_json() | {"seed": seed, "steps": of, "refine": False}
        if refinement:
            asked["instruction"] = refinement["instruction"]
        record = {
            "request": asked,
            "seeds": [seed + at for at in range(request.num_images)],
            "source": {"name": str(request.image), "notes": ["turned upright"]},
            "notices": ["the stand-in is no model"],
            "frame": {"crop": [0, 0, *opened.picture.size]},
            "engine": self.describe(),
            "refinement": refinement,
            "mask": None if request.mask is None else {"name": Path(request.mask).name},
            "seconds": 0.5,
        }
        return EditResult([opened.picture.rotate(180)] * request.num_images, record)

    def close(self):
        self.closed = True
