"""Check src/toprope/support/operators_by_release.toml by sampling: 40 operators at four releases, parsed independently.

    python scripts/operator_draw.py OP_PLUGIN PYTORCH [SEED]

The clones are those of scripts/operator_support, whose code must not be used: the vendor's lists are read as lines of
text here, so that a mistake of one reader is seen by the other. Half of the operators, drawn by a seed, have a kernel
in some release, half have none. Prints each disagreement, and a sentence for docs/operators_by_release.md. Run by hand
after scripts/operator_support. The form of the lists is the vendor's.

No test runs it. A change is right if the clones of an earlier run give the same sentence again.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from toprope.support.operators_on_card import find_release, releases, status

RELEASES = ("2.1.0", "2.1.0.post8", "2.7.1", "2.12.0")
SEED, NUMBER = 20, 40


def _show(clone: Path, commit: str, path: str) -> list[str]:
    folder = clone / "repo" if (clone / "repo").is_dir() else clone
    command = ["git", "-C", str(folder), "show", f"{commit}:{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def _covers(value: str, torch: int, newest: int) -> bool:
    """True if a value of `acl_op:` or `op_api:` covers torch 2.`torch`."""
    value = value.strip()
    if value == "all_version":
        return True
    span = re.fullmatch(r"\[\s*v(\d+)\.(\d+)\s*,\s*(?:v\d+\.(\d+)|newest)\s*\]", value)
    if span:
        return int(span[2]) <= torch <= int(span[3] or newest)
    return f"v2.{torch}" in [part.strip() for part in value.split(",")]


def _registered(plugin: Path, pytorch: Path, version: str) -> set[str]:
    """Operators with a kernel in a release, by the vendor's lists read line by line."""
    release = find_release(version)
    torch = int(release.torch.split(".")[1])
    found = set()
    for path in (f"op_plugin/config/v2r{torch}/op_plugin_functions.yaml", "op_plugin/config/op_plugin_functions.yaml"):
        section, name, newest, interfaces = "", "", torch, ""
        for line in _show(plugin, release.op_plugin, path):
            head = re.match(r"(\w+):(.*)", line)
            if head:
                section = head[1]
                newest = max((int(one) for one in re.findall(r"v2\.(\d+)", head[2])), default=newest)
            function = re.match(r"\s*-\s*func:\s*([\w.]+)", line)
            if function:
                name = function[1]
            interface = re.match(r"\s+(?:acl_op|op_api):\s*(.*)", line)
            if interface and section in ("official", "symint") and _covers(interface[1], torch, newest):
                found.add(name)
            interfaces = line.partition(":")[2] if "impl_ns:" in line else interfaces
            of_a_torch = "/v2r" in path and "impl_ns:" in line
            versions = re.match(r"\s+version:\s*(.*)", line)
            listed = versions is not None and "/v2r" not in path and f"2.{torch}" in re.split(r",\s+", versions[1])
            if section in ("official", "symint") and interfaces and (of_a_torch or (listed and not interface)):
                found.add(name)
    supported = False
    for line in _show(pytorch, release.pytorch, "torch_npu/csrc/aten/npu_native_functions.yaml"):
        if re.match(r"\w", line):
            supported = line.startswith("supported")
        entry = re.match(r"\s*-\s*(?:func:\s*)?([\w.]+)\s*$", line)
        if supported and entry:
            found.add(entry[1])
    return found


def _main() -> None:
    plugin, pytorch = Path(sys.argv[1]), Path(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else SEED
    import torch

    everything = sorted(
        name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")
    )
    with_kernel = [name for name in everything if any(status(name, release=one).registered for one in releases()[::6])]
    without = sorted({*everything} - {*with_kernel})
    draw = random.Random(seed)
    drawn = draw.sample(with_kernel, NUMBER // 2) + draw.sample(without, NUMBER // 2)
    agree = total = 0
    for version in RELEASES:
        registered = _registered(plugin, pytorch, version)
        for name in drawn:
            found = status(name, release=version)
            ours = found.registered and found.operator == f"aten::{name}"
            total += 1
            agree += ours == (name in registered)
            if ours != (name in registered):
                sys.stdout.write(f"{version} {name}: the table says {ours}, the vendor's file {name in registered}\n")
    versions = ", ".join(RELEASES)
    sys.stdout.write(
        f"{agree} of {total} answers agree: {NUMBER} operators drawn with seed {seed}, torch_npu {versions}\n"
    )


if __name__ == "__main__":
    _main()
