"""Train the demo model of `toprope images demo`, on the CPU, in a quarter of an hour; and test it.

    python scripts/train_demo.py FOLDER [--minutes 15] [--threads 1] [--test 100] [--figure FILE]

FOLDER gets a StableDiffusionInstructPix2PixPipeline of less than 2 MB: an autoencoder that is an exact identity (so
that the U-Net works on pixels), a U-Net, a text encoder and a tokenizer, the latter two trained from nothing as well.
The training pictures are drawn by `toprope.images.demo.scenes`. A checkpoint is written every minute; a run that is
started again with the same FOLDER goes on from it. `--minutes 0 --test 100` tests what is there.

Method: Brooks et al., InstructPix2Pix (2023), with v-prediction (Salimans and Ho, 2022) and a moving average of the
weights. Texts that name none of the edits are trained to leave the picture as it is.

Run by hand; the result is copied to src/toprope/images/demo/model. Fixed is the layout of diffusers' pipeline and the
limit of 2 MB; sizes, steps and the learning rate are free, with a new model and its test as the measure. No test runs
it; tests/images/test_images_demo.py holds what the model must do on scenes that it has not seen.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from toprope.images.demo.scenes import EDGE, EDITS, TEST_SEEDS, draw_scene

PHRASES = {
    "make it snow": (
        "make it snow", "let it snow", "add snow", "snow", "cover it with snow", "make it winter", "winter",
        "turn it into winter", "put snow on the ground", "it is snowing",
    ),
    "make it night": (
        "make it night", "turn it into night", "make it dark", "turn day into night", "night", "at night",
        "make it midnight", "switch the lights on", "it is night",
    ),
    "make the house red": (
        "make the house red", "paint the house red", "turn the house red", "a red house", "red house", "make it red",
        "make the walls red", "paint the walls red", "colour the house red",
    ),
    "": (
        "", "do nothing", "keep it", "leave it as it is", "make it rain", "turn it into a watercolour painting",
        "make the door green", "add a dog", "make it a photo", "make the sky pink", "remove the tree", "make it summer",
        "paint the house blue", "make it larger",
    ),
}  # fmt: skip
"""Instructions by the edit that they ask for; "" for none."""

DEFAULTS = {"steps": 8, "guidance": 1.0, "image_guidance": 1.0}
"""Values of the knobs for the model. It was trained without dropping the instruction: guidance has nothing to add."""

SCENES = 3000
TEXTS_EMPTY = 0.1
LOUD = 64.0


def make_tokenizer() -> Any:
    """CLIP's tokenizer: letters, and each word of the phrases in one token."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    merges: dict[tuple[str, str], None] = {}
    for word in sorted({word for phrases in PHRASES.values() for phrase in phrases for word in phrase.split()}):
        pieces = [*word[:-1], f"{word[-1]}</w>"]
        while len(pieces) > 1:
            merges[pieces[0], pieces[1]] = None
            pieces[:2] = ["".join(pieces[:2])]
    tokens += list(dict.fromkeys("".join(pair) for pair in merges if "".join(pair) not in tokens))
    return CLIPTokenizer(vocab={token: at for at, token in enumerate(tokens)}, merges=list(merges), model_max_length=77)


def make_identity() -> Any:
    """An autoencoder that gives back what it is given, whatever it is, with the parts of a real one.

    Every channel goes through twice, once with its sign turned: silu(x) - silu(-x) = x. The group norm before it
    divides by nearly the same number for every picture, since two more channels are constant and large.
    """
    from diffusers import AutoencoderKL

    made = AutoencoderKL(
        block_out_channels=(8,), down_block_types=("DownEncoderBlock2D",), up_block_types=("UpDecoderBlock2D",),
        layers_per_block=1, latent_channels=3, norm_num_groups=1, sample_size=EDGE, use_quant_conv=False,
        use_post_quant_conv=False, mid_block_add_attention=False, scaling_factor=2.0,
    )  # fmt: skip
    with torch.no_grad():
        for each in made.parameters():
            each.zero_()  # the blocks between are identities then
        for coder in (made.encoder, made.decoder):
            coder.conv_norm_out.weight.fill_(1)
            middle, size = coder.conv_in.weight.shape[-1] // 2, math.sqrt(LOUD**2 + 0.9) / 2
            for channel in range(3):
                for sign in (0, 1):
                    coder.conv_in.weight[2 * channel + sign, channel, middle, middle] = 1 - 2 * sign
                    coder.conv_out.weight[channel, 2 * channel + sign, 1, 1] = size * (1 - 2 * sign)
            coder.conv_in.bias[6:8] = torch.tensor([LOUD, -LOUD])
        made.encoder.conv_out.bias[3:] = -30  # the logarithm of the variance
    return made.eval()


def make_pipeline() -> Any:
    """The pipeline, not trained."""
    from diffusers import DDIMScheduler, StableDiffusionInstructPix2PixPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    tokenizer = make_tokenizer()
    text = CLIPTextConfig(
        vocab_size=len(tokenizer), bos_token_id=512, eos_token_id=513, pad_token_id=513, hidden_size=32,
        intermediate_size=64, num_attention_heads=4, num_hidden_layers=2, max_position_embeddings=77,
        projection_dim=32,
    )  # fmt: skip
    unet = UNet2DConditionModel(
        sample_size=EDGE, in_channels=6, out_channels=3, block_out_channels=(16, 32, 64), layers_per_block=1,
        down_block_types=("DownBlock2D",) * 3, up_block_types=("UpBlock2D",) * 3, cross_attention_dim=32,
        attention_head_dim=4, norm_num_groups=8, addition_embed_type="text", addition_embed_type_num_heads=4,
        resnet_time_scale_shift="scale_shift",
    )  # fmt: skip
    scheduler = DDIMScheduler(
        beta_schedule="linear", prediction_type="v_prediction", timestep_spacing="trailing", clip_sample=True,
        clip_sample_range=2.0,
    )  # fmt: skip
    return StableDiffusionInstructPix2PixPipeline(
        vae=make_identity(), text_encoder=CLIPTextModel(text), tokenizer=tokenizer, unet=unet, scheduler=scheduler,
        safety_checker=None, feature_extractor=None, image_encoder=None, requires_safety_checker=False,
    )  # fmt: skip


def drawn(count: int) -> dict[str, torch.Tensor]:
    """Scenes by edit, "" for the scenes themselves: (count, 3, EDGE, EDGE) of bytes."""
    import numpy

    def all_of(edit: str) -> torch.Tensor:
        pictures = [numpy.asarray(draw_scene(seed, edit or None)) for seed in range(count)]
        return torch.from_numpy(numpy.stack(pictures)).permute(0, 3, 1, 2).contiguous()

    return {edit: all_of(edit) for edit in PHRASES}


class Batches:
    """Random examples: source, target, tokens."""

    def __init__(self, scenes: dict[str, torch.Tensor], tokenizer: Any, seed: int) -> None:
        self.scenes, self.draws = scenes, random.Random(seed)
        self.tokens = {
            phrase: tokenizer(phrase, padding="max_length", max_length=77, return_tensors="pt").input_ids[0]
            for phrases in PHRASES.values()
            for phrase in phrases
        }

    def draw(self, size: int, edge: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Examples of `edge` pixels: parts of scenes, half of them mirrored."""
        draws, rows = self.draws, []
        for _ in range(size):
            empty = draws.random() < TEXTS_EMPTY
            edit = "" if empty else draws.choice(list(EDITS))
            at, mirror = draws.randrange(len(self.scenes[""])), draws.random() < 0.5
            x, y = draws.randint(0, EDGE - edge), draws.randint(0, EDGE - edge)
            pair = [self.scenes[each][at, :, y : y + edge, x : x + edge] for each in ("", edit)]
            pair = [each.flip(-1) if mirror else each for each in pair]
            rows.append((*pair, self.tokens[draws.choice(PHRASES[edit])]))
        source, target, tokens = (torch.stack(each) for each in zip(*rows, strict=True))
        return source.float() / 127.5 - 1, target.float() / 127.5 - 1, tokens


def loss_of(pipeline: Any, batch: tuple[torch.Tensor, ...], scale: float) -> torch.Tensor:
    """The error of the prediction at random noise levels, most of them high: the first steps decide the result."""
    source, target, tokens = batch
    clean, noise = target * scale, torch.randn_like(target)
    times = (torch.rand(len(source)).sqrt() * 1000).long().clamp(max=999)
    noisy = pipeline.scheduler.add_noise(clean, noise, times)
    wanted = pipeline.scheduler.get_velocity(clean, noise, times)
    words = pipeline.text_encoder(tokens)[0]
    given = torch.cat([noisy, source], 1).contiguous(memory_format=torch.channels_last)
    return functional.mse_loss(pipeline.unet(given, times, encoder_hidden_states=words, return_dict=False)[0], wanted)


def train(folder: Path, minutes: float, seed: int, report: float = 20.0) -> None:
    """Train and save; `minutes` counts the training of all runs together."""
    torch.manual_seed(seed)
    pipeline, state = make_pipeline(), folder.with_suffix(".state.pt")
    parts = torch.nn.ModuleList([pipeline.unet, pipeline.text_encoder])
    parts.to(memory_format=torch.channels_last).train()
    average = copy.deepcopy(parts).eval()
    optimizer = torch.optim.AdamW(parts.parameters(), lr=2e-3, weight_decay=1e-3, betas=(0.9, 0.98))
    spent, step = 0.0, 0
    if state.exists():
        saved = torch.load(state)
        parts.load_state_dict(saved["parts"])
        average.load_state_dict(saved["average"])
        optimizer.load_state_dict(saved["optimizer"])
        spent, step = saved["spent"], saved["step"]
    say(f"{sum(each.numel() for each in parts.parameters())} parameters; drawing {SCENES} scenes")
    batches = Batches(drawn(SCENES), pipeline.tokenizer, seed + step)
    scale = pipeline.vae.config.scaling_factor
    total, told, kept, mean = 60 * minutes, spent, spent, math.nan
    while spent < total:
        began = time.monotonic()
        done = spent / total
        rate = 2e-3 * min(1, (step + 1) / 50) * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(pipeline, batches.draw(*((16, EDGE // 2) if done < 0.6 else (6, EDGE))), scale)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
        optimizer.step()
        step += 1
        decay = min(0.995, (1 + step) / (10 + step))
        with torch.no_grad():
            for own, its in zip(average.parameters(), parts.parameters(), strict=True):
                own.lerp_(its, 1 - decay)
        mean = loss.item() if math.isnan(mean) else 0.97 * mean + 0.03 * loss.item()
        spent += time.monotonic() - began
        if spent - told > report:
            told = spent
            say(f"{spent / 60:5.1f} min  step {step}  loss {mean:.4f}")
        if spent - kept > 60 or spent >= total:
            kept = spent
            saved = {"parts": parts.state_dict(), "average": average.state_dict()}
            torch.save(saved | {"optimizer": optimizer.state_dict(), "spent": spent, "step": step}, state)
            save(pipeline, average, folder)


def save(pipeline: Any, average: Any, folder: Path) -> None:
    """Write the pipeline with the averaged weights, in half precision."""
    whole = make_pipeline()
    for part, own in ((whole.unet, average[0]), (whole.text_encoder, average[1])):
        part.load_state_dict(own.state_dict())
    whole.to(torch.float16).save_pretrained(folder, max_shard_size="900KB")
    (folder / "toprope.json").write_text(json.dumps({"defaults": DEFAULTS}, indent=2) + "\n", encoding="utf-8")


def test(folder: Path, count: int) -> None:
    """Print how many results are nearer to their target than to the source and to the other targets."""
    from toprope.images import EditRequest, Engine

    with Engine.open(folder, device="cpu", dtype="fp32") as engine:
        for edit in EDITS:
            right, ratios = 0, []
            for seed in TEST_SEEDS[:count]:
                result = engine.edit(EditRequest(draw_scene(seed), edit, seed=seed)).pictures[0]
                near = {each: psnr(result, draw_scene(seed, each)) for each in (None, *EDITS)}
                right += max(near, key=near.__getitem__) == edit
                ratios.append(near[edit])
            say(f"{edit}: {right} of {count}, PSNR {sum(ratios) / count:.1f} dB")


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def draw(folder: Path, path: Path) -> None:
    """Draw what the model makes of scenes that it was not trained on: a row each, the scene first."""
    from PIL import Image

    from toprope.images import EditRequest, Engine

    shown, gap = 2 * EDGE, 4
    rows, columns = TEST_SEEDS[1:4], (None, *EDITS)
    whole = Image.new("RGB", (len(columns) * (shown + gap) - gap, len(rows) * (shown + gap) - gap), "white")
    with Engine.open(folder, device="cpu", dtype="fp32") as engine:
        for down, seed in enumerate(rows):
            for across, edit in enumerate(columns):
                made = draw_scene(seed)
                if edit is not None:
                    made = engine.edit(EditRequest(made, edit, seed=seed)).pictures[0]
                whole.paste(made.resize((shown, shown)), (across * (shown + gap), down * (shown + gap)))
    whole.save(path, optimize=True)


def psnr(one: Any, other: Any) -> float:
    """Peak signal-to-noise ratio of two pictures of one size, in dB."""
    import numpy

    error = numpy.mean((numpy.asarray(one, float) - numpy.asarray(other, float)) ** 2)
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def main() -> None:
    """Read the command line, train and test."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test", type=int, default=0, metavar="PICTURES")
    parser.add_argument("--figure", type=Path, help="draw examples into this file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.minutes:
        train(given.folder, given.minutes, given.seed)
    if given.test:
        test(given.folder, given.test)
    if given.figure:
        draw(given.folder, given.figure)


if __name__ == "__main__":
    main()
