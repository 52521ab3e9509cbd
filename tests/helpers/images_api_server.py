"""The server of `toprope ui` with a stand-in for the model, for tests of its HTTP API. Not a test.

    python images_api_server.py FOLDER

It prints its URL and its folder for files. Whatever asks a server whether it is up is slower than any patience. While
there is a file FOLDER/hold, an edit waits in its step, with a file FOLDER/began; FOLDER/cancelled says that it was
cancelled there. It ends when stdin does.
"""

import sys
import time
from pathlib import Path

import httpx
from PIL import Image

from toprope.errors import EditCancelled
from toprope.images import EditResult
from toprope.images.web import Controller, Limits, serve
from toprope.progress import Step


class StandIn:
    """An engine that gives the picture back."""

    def __init__(self, folder):
        self.folder = folder

    def describe(self):
        return {"options": {"steps": 5}, "refiner": None, "device": "cpu", "loras": [], "memory": {}}

    def memory(self):
        return {}

    def close(self):
        pass

    def edit(self, request, *, on_step, cancelled):
        on_step(Step(1, 1, 0.1))
        while (self.folder / "hold").exists():
            (self.folder / "began").touch()
            if cancelled():
                (self.folder / "cancelled").touch()
                raise EditCancelled("the edit was cancelled after 1 step.")
            time.sleep(0.02)
        with Image.open(request.image) as opened:
            made = opened.convert("RGB")
        seeds = [(request.seed or 0) + at for at in range(request.num_images)]
        source = {"name": request.image, "size": list(made.size), "notes": ["turned upright"]}
        record = {"request": request.as_json(), "seeds": seeds, "source": source, "notices": ["slow"]}
        return EditResult([made] * len(seeds), record | {"frame": {"crop": [0, 0, *made.size]}})


def slow(*_arguments, **_options):
    raise httpx.ReadTimeout("slower than 3 s")


def main(folder: Path) -> None:
    httpx.head = slow
    controller = Controller("m", lambda tell: StandIn(folder), limits=Limits(upload=2**20, files=2, uploads=3))
    controller.load()
    served = serve(controller, port=0)
    print(served.url, controller.scratch, flush=True)
    sys.stdin.read()
    served.stop()
    assert not served.thread.is_alive()
    assert controller.close()
    print("stopped", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
