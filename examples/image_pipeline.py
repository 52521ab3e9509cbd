"""A folder of images through a dataflow pipeline: decode and postprocess on the host, crop and a ViT on the card.

    toprope run --chip 910B3 examples/image_pipeline.py IMAGES --out DIR
    toprope run --device cpu examples/image_pipeline.py IMAGES --out DIR

Without IMAGES it draws some, and a file that is none. DIR/labels.jsonl has one line for each image, in order: its best
labels, or why it could not be used. DIR/graph.svg is the pipeline with its figures. The weights are random unless
--weights names a folder that save_pretrained has written for a ViT of transformers.
"""

import argparse
import contextlib
import functools
import itertools
import json
import random
import sys
from collections import deque
from pathlib import Path

import dataflow as df
import torch
from PIL import Image, ImageDraw, ImageOps
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LABELS, TOP, SIDE, SEED = 10, 3, 64, 7
UNDER_WAY = 256


@df.pyflow
def decode(path):
    """The pixels of an image file, upright and in RGB: uint8, 3 x height x width."""
    import numpy

    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    return torch.from_numpy(numpy.array(upright)).permute(2, 0, 1).contiguous()


@df.npu_model
def crop(pixels):
    """The square in the middle, scaled to what the model takes, its values from -1 to 1."""
    height, width = pixels.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = pixels[None, :, top : top + side, left : left + side].float()
    return torch.nn.functional.interpolate(square, (SIDE, SIDE), mode="bilinear") / 127.5 - 1


@df.npu_model
class Classify(torch.nn.Module):
    """A vision transformer. It is made in its stage, which moves it to the card."""

    def __init__(self, weights):
        from transformers import ViTConfig, ViTForImageClassification

        super().__init__()
        if weights:
            self.model = ViTForImageClassification.from_pretrained(weights)
        else:
            torch.manual_seed(SEED)
            self.model = ViTForImageClassification(
                ViTConfig(
                    hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128,
                    image_size=SIDE, patch_size=16, num_labels=LABELS, initializer_range=0.2,
                )
            )  # fmt: skip
        self.model.eval()

    @df.method()
    def forward(self, image):
        """What the model gives each label; an image of another size than the model's is scaled to it."""
        side = self.model.config.image_size
        if image.shape[-1] != side:
            image = torch.nn.functional.interpolate(image, (side, side), mode="bilinear")
        with torch.no_grad():
            return self.model(image).logits


@df.pyflow
def postprocess(logits):
    """The best labels, and how sure the model is of each."""
    scores, labels = torch.as_tensor(logits)[0].softmax(0).topk(TOP)
    return [
        {"label": label, "score": round(score, 6)}
        for label, score in zip(labels.tolist(), scores.tolist(), strict=True)
    ]


def draw(folder, count):
    """Images of several sizes and formats, always the same ones; the third is cut off in the middle."""
    numbers = random.Random(SEED)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        width, height = numbers.randint(70, 320), numbers.randint(70, 320)
        image = Image.new("RGB", (width, height), tuple(numbers.choices(range(256), k=3)))
        pen = ImageDraw.Draw(image)
        for _ in range(12):
            x, y, size = numbers.randrange(width), numbers.randrange(height), numbers.randint(8, 80)
            shape = pen.ellipse if numbers.random() < 0.5 else pen.rectangle
            shape((x, y, x + size, y + size), fill=tuple(numbers.choices(range(256), k=3)))
        path = folder / f"{number:03}.{'jpg' if number % 2 else 'png'}"
        image.save(path)
        if number == 2:
            path.write_bytes(path.read_bytes()[:100])


def run(paths, weights, out, check):
    """Put the images through the pipeline, and write what comes out; how many were left out."""
    image = df.FlowData(name="path")
    logits = Classify.fnode(weights).forward(crop.fnode()(decode.fnode()(image)))
    failed = 0
    model = functools.cache(lambda: df.local(Classify, weights))
    with (
        df.FlowGraph([postprocess.fnode()(logits)], name="Images to labels", trace=True) as graph,
        (out / "labels.jsonl").open("w", encoding="utf-8") as lines,
        progress(len(paths)) as advance,
    ):
        waiting = deque()

        def take():
            nonlocal failed
            path, future = waiting.popleft()
            try:
                (found,) = future.result()
                line = {"image": path.name, "labels": found}
                if check and found != postprocess(model().forward(crop(decode(path)))):
                    sys.exit(f"{path.name}: plain PyTorch finds other labels")
            except Exception as error:  # this image's own: the others go on
                failed += 1
                line = {"image": path.name, "error": f"{type(error).__name__}: {error}"}
                print(f"{path.name} was left out: {error}", file=sys.stderr)
            lines.write(json.dumps(line) + "\n")
            advance()

        for path in paths:
            waiting.append((path, graph.submit({image: str(path)})))
            while waiting and (waiting[0][1].done() or len(waiting) > UNDER_WAY):
                take()
        while waiting:
            take()
        graph.picture(str(out / "graph.svg"))
        graph.trace(str(out / "trace.json"))
    return failed


@contextlib.contextmanager
def progress(total):
    """A bar on a terminal, else a line for every quarter, on standard error."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = TextColumn("images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("images", total=total)
            yield lambda: bar.advance(task)
        return
    done = itertools.count(1)

    def advance():
        number = next(done)
        if number * 4 // total > (number - 1) * 4 // total:
            print(f"{number} of {total} images", file=sys.stderr)

    yield advance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="?", type=Path, help="folder of images; left out: some are drawn in DIR/images")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder to write to")
    parser.add_argument("--draw", type=int, default=24, help="how many images to draw")
    parser.add_argument("--weights", default="", help="folder of a ViT for classification")
    parser.add_argument("--check", action="store_true", help="run each image in plain PyTorch here too, and compare")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.images is None:
        arguments.images = arguments.out / "images"
        draw(arguments.images, arguments.draw)
    paths = sorted(each for each in arguments.images.iterdir() if each.is_file())
    if not paths:
        sys.exit(f"there is no image in {arguments.images}")
    df.init({})
    failed = run(paths, arguments.weights, arguments.out, arguments.check)
    df.finalize()
    print(f"labelled {len(paths) - failed} of {len(paths)} images")
    print(f"wrote {arguments.out / 'labels.jsonl'}, {arguments.out / 'graph.svg'}, {arguments.out / 'trace.json'}")


if __name__ == "__main__":
    main()
