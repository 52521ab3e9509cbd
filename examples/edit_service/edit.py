"""Edit a picture by an instruction, on CUDA: the script that docs/tutorials/all_parts.md ports, fits and serves.

    python edit.py model picture.png "make it snow" snow.png

The folder has a model of diffusers.
"""

import sys

import torch
from diffusers import StableDiffusionInstructPix2PixPipeline
from diffusers.utils import logging
from PIL import Image

logging.disable_progress_bar()


def load(folder):
    pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to("cuda")


def edit(pipeline, picture, instruction):
    noise = torch.Generator("cuda").manual_seed(0)
    return pipeline(instruction, image=picture, num_inference_steps=2, generator=noise).images[0]


def main():
    folder, source, instruction, result = sys.argv[1:]
    pipeline = load(folder)
    edit(pipeline, Image.open(source), instruction).save(result)
    torch.cuda.synchronize()
    print(f"wrote {result} on {torch.cuda.get_device_name()}, peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
