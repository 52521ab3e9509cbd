"""Estimates next to those of another model of these cards: `python benchmarks/other_model.py`.

The cases are those of benchmarks/measurements/other_model.toml. That model is not known to have been measured, so this
is agreement and no accuracy. Takes about five minutes.

Run by hand; docs/time.md has the table. The other model's figures are its own, and are never adapted.

No test runs it; tests/project/test_benchmarks.py holds only that it is no part of `make bench`.
"""

import json
import statistics
import subprocess
import tomllib
from pathlib import Path

from toprope import chips
from toprope.estimate.cost.rates import shipped_rates

HERE = Path(__file__).parent
CONFIGS = (HERE / "measurements" / "configs", HERE.parent / "tests" / "estimate" / "configs")


def estimated(case):
    """The range of a case in seconds."""
    model = next(folder / case["model"] for folder in CONFIGS if (folder / case["model"]).exists())
    words = ["toprope", "estimate", str(model), "--chip", case["chip"], "--json", *case["options"].split()]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=600)
    found = [each / case.get("cards", 1) for each in json.loads(done.stdout)["time"]["total"]]
    if "sends" in case:
        number, size, ranks = case["sends"]
        sent = shipped_rates(chips.get(case["chip"])).collective("alltoall", size, ranks).times(number)
        found = [mine + each for mine, each in zip(found, sent, strict=True)]
    return found


def main():
    cases = tomllib.loads((HERE / "measurements" / "other_model.toml").read_text(encoding="utf-8"))["case"]
    inside, ratios = 0, []
    print("| case | chip | its figures | ours | inside | ours / its |\n| --- | --- | --- | --- | --- | ---: |")
    for case in cases:
        if "left_out" in case:
            continue
        low, likely, high = estimated(case)
        within = low <= case["baseline"] <= high
        inside += within
        ratios.append(likely / case["baseline"])
        print(
            f"| {case['name']} | {case['chip']} | {case['baseline']:.4g} s ({case['initial']:.4g}) | "
            f"{low:.3g} to {high:.3g} s | {'yes' if within else 'no'} | {ratios[-1]:.2f} |",
            flush=True,
        )
    left_out = sum(case.get("count", 1) for case in cases if "left_out" in case)
    print(f"\n{inside} of {len(ratios)} inside, median ratio {statistics.median(ratios):.2f}; {left_out} not compared")


if __name__ == "__main__":
    main()
