"""`toprope ui` over a tiny model with a LoRA, for tests of its page and for the figures in docs/images.md. Not a test.

    python images_page_server.py FOLDER [options of toprope ui]

It writes the model into FOLDER/tiny, where there is none, serves the page, and loads the model once there is a file
FOLDER/go. While there is a file FOLDER/hold, no edit goes on after a step, unless it is cancelled.
"""

import os
import sys
import time
from pathlib import Path


def write_lora(path: Path) -> None:
    """A LoRA of rank 4 for the tiny InstructPix2Pix, with weights that change a lot."""
    import torch
    from safetensors.torch import save_file

    made, generator = {}, torch.Generator().manual_seed(0)
    for block in ("down_blocks.1.attentions.0", "up_blocks.0.attentions.0"):
        for name in ("to_q", "to_v"):
            layer = f"unet.{block}.transformer_blocks.0.attn1.{name}"
            made[f"{layer}.lora_A.weight"] = torch.randn(4, 64, generator=generator)
            made[f"{layer}.lora_B.weight"] = torch.randn(64, 4, generator=generator)
    save_file(made, path, metadata={"format": "pt"})


def main(folder: Path, options: list[str]) -> int:
    import torch

    from toprope.cli import main as toprope
    from toprope.cli import ui
    from toprope.images.tiny import write

    torch.set_num_threads(1)
    if not (folder / "tiny").exists():  # else the caller's, or a server that was started again
        write("ip2p", folder / "tiny")
    if not (folder / "snow.safetensors").exists():
        write_lora(folder / "snow.safetensors")
    opener = ui._opener

    def gated(*arguments, **named):
        open_engine = opener(*arguments, **named)

        def open_it(tell):
            tell("waiting for the test")
            while not (folder / "go").exists():
                time.sleep(0.02)
            engine = open_engine(tell)
            edit = engine.edit

            def held(request, *, on_step, cancelled):
                def step(each):
                    on_step(each)
                    while (folder / "hold").exists() and not cancelled():
                        time.sleep(0.02)

                return edit(request, on_step=step, cancelled=cancelled)

            engine.edit = held
            return engine

        return open_it

    ui._opener = gated
    return toprope(["ui", "--model", str(folder / "tiny"), "--lora", str(folder / "snow.safetensors"), *options])


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
