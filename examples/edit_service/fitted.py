"""The ported script with its U-Net fitted into the card by tiers: 24 MB of the card for weights.

    python fitted.py model picture.png "make it snow" snow.png

The folder has a model of diffusers.
"""

import edit  # the ported script, next to this file
from diffusers import StableDiffusionInstructPix2PixPipeline

from toprope.device import portable
from toprope.tiers import attach


def load(folder):
    pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    for part in (pipeline.vae, pipeline.text_encoder):
        part.to(portable.device())
    attach(pipeline.unet, device="24MB", host="1GB", on=portable.name())
    return pipeline


if __name__ == "__main__":
    edit.load = load
    edit.main()
