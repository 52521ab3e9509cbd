"""Run torch's own Inductor tests on the simulated card and on the host, and print which differ.

python scripts/inductor_tests.py test_torchinductor.py --count 300 --seed 1 --only 'test_(?!dtypeview)'

The file is torch's test/inductor/test_torchinductor.py, which no wheel has: take it from the release of torch that is
installed, or from the nearest one. The seed draws a sample of the tests of its CommonTemplate. Those that pass on the
host and not on the card are printed with their error. `--ends FOLDER` keeps how they end, in the files of
scripts/library_tests, and runs what is not in them.

Run by hand; docs/simulator.md and docs/soak.md have the figures. `work` is this same file in a child process, and
scripts/library_tests calls it for its sample of Inductor. Fixed by torch: the names CommonTemplate, check_model,
check_model_gpu, copy_tests and GPU_TYPE of that file. Fixed by `library_tests.ends`: the lines that `keep` writes.

No test runs it: run it with `--count 5` after a change.
"""

from __future__ import annotations

import argparse
import ast
import faulthandler
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import unittest
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from library_tests.ends import Ends

DEVICES = ("cpu", "npu")
# Graphs are lowered again on the card; the C++ kernels that the host's run compiled are taken from the cache.
ENVIRONMENT = {"INDUCTOR_TEST_DISABLE_FRESH_CACHE": "1", "TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}


def load(file: Path) -> Any:
    """Import the test file; what it takes from torch and the installed one lacks skips a test, or makes it fail."""
    for each in ast.parse(file.read_bytes()).body:
        if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("torch."):
            source = importlib.import_module(str(each.module))
            for name in {alias.name for alias in each.names} - {*vars(source)}:
                try:
                    importlib.import_module(f"{each.module}.{name}")
                except ModuleNotFoundError:
                    setattr(source, name, unittest.skip(f"this torch has no {name}"))
    sys.path.insert(0, str(file.parent))
    return importlib.import_module(file.stem)


def case_of(module: Any, device: str) -> type[unittest.TestCase]:
    """Make the tests of CommonTemplate for one device; all in the dtypes they are written for."""

    def on_card(self: Any, *args: Any, **options: Any) -> None:
        module.check_model_gpu(self, *args, **{**options, "check_lowp": False})

    module.GPU_TYPE = module.NPU_TYPE = "npu"
    common = module.check_model if device == "cpu" else on_card
    case = type("Cases", (module.TestCase,), {"common": common, "device": device})
    module.copy_tests(module.CommonTemplate, case, device)
    return case


def work(file: Path, device: str, limit: int) -> None:
    """Run the tests whose names are on stdin, and write a line of JSON for each."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the tests print
    case = case_of(load(file), device)
    signal.signal(signal.SIGALRM, stop)
    for name in sys.stdin.read().split():
        result = unittest.TestResult()
        signal.alarm(limit)
        faulthandler.dump_traceback_later(2 * limit, exit=True)  # in C++ no signal is seen
        unittest.TestSuite([case(f"{name}_{device}")]).run(result)
        signal.alarm(0)
        wrong = "\n".join(text for _, text in [*result.errors, *result.failures])
        status = "failed" if wrong else "skipped" if result.skipped else "passed"
        text = wrong or "\n".join(reason for _, reason in result.skipped)
        out.write(json.dumps({"name": name, "status": status, "text": text}) + "\n")


def run(file: Path, device: str, names: list[str], limit: int, sim: str) -> dict[str, dict[str, str]]:
    """Run the tests in a process; after one that ends it, the rest in another."""
    results: list[dict[str, str]] = []
    command = [sys.executable, __file__, str(file), "--worker", device, "--limit", str(limit)]
    environment = {**os.environ, **ENVIRONMENT} | ({"TOPROPE_SIM": sim} if device == "npu" else {})
    while names:
        done = subprocess.run(command, input="\n".join(names).encode(), env=environment, capture_output=True)
        found = [json.loads(line) for line in done.stdout.decode().splitlines()]
        results, names = [*results, *found], names[len(found) :]
        if names:
            text = done.stderr.decode(errors="replace")
            results.append({"name": names.pop(0), "status": f"exit {done.returncode}", "text": text})
    return {each["name"]: each for each in results}


def keep(path: Path, results: dict[str, dict[str, str]]) -> None:
    """Append how tests ended."""
    with path.open("a", encoding="utf-8") as file:
        for name, each in results.items():
            ended = "failed" if each["status"].startswith("exit") else each["status"]
            lines = [line for line in each["text"].splitlines() if line.strip() and not line.startswith(" ")]
            wrong = [line for line in lines if "Error" in line] or lines
            entries = [name, "begins"], [name, ended, (wrong or [""])[0][:300]], [name, "finished"]
            file.write("".join(f"{json.dumps(entry)}\n" for entry in entries))


def main() -> None:
    """Run the sample on both devices and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    for name, number in {"count": 300, "seed": 1, "processes": 2, "limit": 120}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--sim", default="910B3,refuse=off", help="the simulated card, as in TOPROPE_SIM")
    parser.add_argument("--only", default="test_", help="regular expression for the names of the tests")
    parser.add_argument("--ends", type=Path, help="folder in which to keep how the tests end")
    parser.add_argument("--worker", choices=DEVICES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.file, args.worker, args.limit)
        return
    known = sorted(name for name in vars(load(args.file).CommonTemplate) if re.match(args.only, name))
    names = random.Random(args.seed).sample(known, min(args.count, len(known)))

    kept = {device: args.ends / device / f"{args.file.stem}.jsonl" for device in DEVICES} if args.ends else {}
    for path in kept.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    done = set.intersection(*({*Ends.read(path).ended} for path in kept.values())) if kept else set()
    names = [name for name in names if name not in done]

    def both(part: list[str]) -> list[dict[str, dict[str, str]]]:
        found = [run(args.file, device, part, args.limit, args.sim) for device in DEVICES]
        for path, results in zip(kept.values(), found, strict=False):
            keep(path, results)
        return found

    with ThreadPoolExecutor(args.processes) as pool:
        parts = list(pool.map(both, (names[first : first + 15] for first in range(0, len(names), 15))))
    host, card = ({name: one for part in parts for name, one in part[place].items()} for place in (0, 1))
    passed = [name for name in names if host[name]["status"] == "passed"]
    differ = [name for name in passed if card[name]["status"] != "passed"]
    for name in differ:
        sys.stdout.write(f"{name}: {card[name]['text'][-400:]}\n")
    for device, results in zip(DEVICES, (host, card), strict=True):
        sys.stdout.write(f"{device}: {dict(Counter(each['status'] for each in results.values()))}\n")
    sys.stdout.write(f"of {len(passed)} that passed on cpu, {len(passed) - len(differ)} passed on npu\n")


if __name__ == "__main__":
    main()
