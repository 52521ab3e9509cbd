"""Estimates for whole models next to held-out measurements: `python benchmarks/model_estimates.py`.

The measurements are those of benchmarks/measurements/models.toml that are held out and described well enough to write
the program, or the options of `toprope estimate`. Takes about five minutes.

Run by hand after a change of `toprope.estimate`; docs/time.md has the table. Nothing is ever fitted to these rows, and
no program of benchmarks/measurements/programs is tuned.

No test runs it; tests/project/test_benchmarks.py holds only that it is no part of `make bench`.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS, CONFIGS = HERE / "measurements" / "programs", HERE / "measurements" / "configs"
QWEN = HERE.parent / "tests" / "estimate" / "configs" / "qwen2.5-7b"
FAMILY = ("910B1", "910B2", "910B3", "910B4", "910B4-1")
DECODE = ("--mode", "decode", "--length")
PREFILL = (QWEN, "--mode", "prefill", "--length", "200")
SMALL, MEDIUM = (1, 2, 128, 512, 8), (4, 1, 256, 1024, 16)

# name, source, measured milliseconds, chips, program or model with its options
CASES = [
    ("tiny Qwen2, training step", "candle#562", 14.88, ("910B3",), ("tiny_qwen2_training.py",)),
    ("1 layer, FSDP2 on 2 cards, training step", "candle#558", 33.80, ("910B3",), ("fsdp2_training.py", *SMALL)),
    ("4 layers, FSDP2 on 2 cards, training step", "candle#558", 123.89, ("910B3",), ("fsdp2_training.py", *MEDIUM)),
    ("1 layer in float32, forward", "GroundUpScale 30", 1.03, ("910B2",), ("transformer_forward.py", 1)),
    ("2 layers in float32, forward", "GroundUpScale 30", 1.92, ("910B2",), ("transformer_forward.py", 2)),
    ("Qwen2.5-7B, decode, graph", "vllm-ascend#904", 22.38, FAMILY, (QWEN, *DECODE, "264", "--batch", "4", "--graph")),
    ("Qwen2.5-7B, decode, eager", "vllm-ascend#904", 32.57, FAMILY, (QWEN, *DECODE, "264", "--batch", "4")),
    ("Qwen2.5-7B, decode, eager", "vllm-ascend#904", 21.94, FAMILY, (QWEN, *DECODE, "264", "--batch", "4")),
    ("Qwen2.5-7B, decode, eager", "vllm-ascend#904", 32.41, FAMILY, (QWEN, *DECODE, "264", "--batch", "4")),
    ("Qwen2.5-7B, decode, eager", "vllm-ascend#878", 17.21, FAMILY, (QWEN, *DECODE, "264", "--batch", "3")),
    ("Qwen2.5-7B, 200 tokens to the first", "vllm-ascend#904", 64.45, FAMILY, PREFILL),
    ("Qwen2.5-7B, 200 tokens to the first", "vllm-ascend#904", 86.58, FAMILY, PREFILL),
    ("Qwen3-32B on 2 cards, 16 x 2,048, decode", "vllm-ascend#4395", 66.7, ("910B4",),
     (CONFIGS / "qwen3-32b", *DECODE, "2048", "--batch", "16", "--tp", "2", "--graph")),
    ("Qwen3-32B on 2 cards, 16 x 8,192, decode", "vllm-ascend#4395", 111.0, ("910B4",),
     (CONFIGS / "qwen3-32b", *DECODE, "8192", "--batch", "16", "--tp", "2", "--graph")),
    ("Mistral-7B in float16, decode, eager", "dtcms.com/a/572961", 55.6, FAMILY,
     (CONFIGS / "mistral-7b", *DECODE, "100", "--dtype", "float16")),
]  # fmt: skip


def of_program(chip, words):
    """Run a program on the simulated card; return its step's estimate in ms: least, likely, most."""
    name, *arguments = words
    command = [str(PROGRAMS / name), *map(str, arguments)]
    cards = []
    if name.startswith("fsdp2"):
        command, cards = ["torchrun", "--nproc-per-node", "2", *command], ["--count", "2"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            ["toprope", "run", "-q", "--chip", chip, *cards, "--report", report, *command],
            check=True, capture_output=True, timeout=600,
        )  # fmt: skip
        return [1e3 * each for each in json.loads(report.read_text())["cards"][0]["time"]["step"]]


def of_model(chip, words):
    """Estimate a model with `toprope estimate`; return ms: least, likely, most."""
    done = subprocess.run(
        ["toprope", "estimate", *map(str, words), "--chip", chip, "--json"],
        check=True, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return [1e3 * each for each in json.loads(done.stdout)["time"]["total"]]


def main():
    inside, errors = 0, []
    print("| program | source | measured | estimate | inside |\n| --- | --- | ---: | ---: | --- |")
    for what, source, measured, chips, words in CASES:
        found = [(of_program if str(words[0]).endswith(".py") else of_model)(chip, words) for chip in chips]
        low, high = min(each[0] for each in found), max(each[2] for each in found)
        likely = statistics.median(each[1] for each in found)
        within = low <= measured <= high
        inside += within
        errors.append(abs(likely / measured - 1))
        print(
            f"| {what} | {source} | {measured:g} ms | {low:.3g} to {high:.3g} ms | {'yes' if within else 'no'} |",
            flush=True,
        )
    print(f"\n{inside} of {len(CASES)} inside, median error {statistics.median(errors):.0%}")


if __name__ == "__main__":
    sys.exit(main())
