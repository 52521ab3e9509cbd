"""`toprope ui` over a tiny model, for tests of its page and for the figures in docs/images.md. Not a test.

    python images_page_server.py FOLDER FAMILY [options of toprope ui]

It writes the model into FOLDER, serves the page, and loads the model once there is a file FOLDER/go.
"""

import os
import sys
import time
from pathlib import Path


def main(folder: Path, family: str, options: list[str]) -> int:
    import torch

    from toprope.cli import main as toprope
    from toprope.cli import ui
    from toprope.images.tiny import write

    torch.set_num_threads(1)
    write(family, folder / "tiny")
    opener = ui._opener

    def gated(*arguments, **named):
        open_engine = opener(*arguments, **named)

        def open_it(tell):
            tell("waiting for the test")
            while not (folder / "go").exists():
                time.sleep(0.02)
            return open_engine(tell)

        return open_it

    ui._opener = gated
    return toprope(["ui", "--model", str(folder / "tiny"), *options])


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
