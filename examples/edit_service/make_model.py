"""Write an InstructPix2Pix with random weights, 0.1 GB, in place of one that was downloaded.

    python make_model.py model

The layout is the one of real models, and the pictures are noise.
"""

import sys

import torch
from diffusers import UNet2DConditionModel

from toprope.images.example import picture
from toprope.images.tiny import write

folder = sys.argv[1]
write("ip2p", folder)
picture().resize((64, 64)).save(f"{folder}/example.png")
torch.manual_seed(0)
unet = UNet2DConditionModel(
    block_out_channels=(128, 256), layers_per_block=2, sample_size=32, in_channels=8, out_channels=4,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    cross_attention_dim=32,
)  # fmt: skip
unet.save_pretrained(f"{folder}/unet")
print(f"wrote {folder}: a U-Net of {sum(each.nbytes for each in unet.parameters()) / 1e6:.1f} MB")
