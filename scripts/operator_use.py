"""Rank torch_npu's operators by the files of public repositories that call them, and write docs/operator_use.md.

    python scripts/operator_use.py VENDOR

VENDOR holds clones named OWNER+NAME, as for scripts/vendor_tests; a missing one is skipped by name. Every repository
weighs the same: an operator's share in it is its files among the files of all operators there.

Run by hand; nothing reads the page but people who decide which operator comes next. `REPOSITORIES` and `CALL` decide
what is counted: with others the figures of the page change, and its text must say so. An operator is "here" if
compat/torch_npu/operators has it as `@operator("NAME")`.

No test runs it; it writes docs/operator_use.md, whose difference is looked at.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from toprope.support.npu_operators import npu_operators

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "operator_use.md"
OPERATORS = ROOT / "src" / "toprope" / "compat" / "torch_npu" / "operators"
REPOSITORIES = (
    "vllm-project/vllm-ascend", "sgl-project/sglang", "Ascend/MindSpeed", "Ascend/MindSpeed-LLM", "Ascend/MindIE-SD",
    "Ascend/ModelZoo-PyTorch", "huggingface/transformers", "huggingface/diffusers", "volcengine/verl",
)  # fmt: skip
CALL = re.compile(
    r"(?:torch_npu|torch\.ops\.npu|torch\.ops\.atb)\.(_?npu_\w+|one_|fast_gelu|scatter_update_?|batch_norm_reduce)\b"
)


def _git(clone: Path, *arguments: str) -> str:
    command = ["git", "-C", str(clone), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, errors="replace").stdout


def _files(clone: Path) -> Counter[str]:
    """Files that call each operator."""
    found: set[tuple[str, str]] = set()
    for line in _git(clone, "grep", "-IE", r"(torch_npu|torch\.ops\.(npu|atb))\.", "HEAD", "--", "*.py").splitlines():
        _, path, text = line.split(":", 2)
        found |= {(path, name) for name in CALL.findall(text)}
    return Counter(name for _, name in found)


def _page(vendor: Path) -> str:
    """The page: operators ranked by their shares in all repositories."""
    shares: Counter[str] = Counter()
    files: Counter[str] = Counter()
    users: dict[str, list[str]] = {}
    sources, absent = [], []
    for repository in REPOSITORIES:
        folder = vendor / repository.replace("/", "+")
        clone = folder / "repo" if (folder / "repo").exists() else folder
        if not clone.exists():
            absent.append(repository)
            continue
        counts = _files(clone)
        sources.append(f"{repository} {_git(clone, 'log', '-1', '--format=%h of %cs').strip()}")
        for name, count in counts.items():
            shares[name] += count / counts.total()
            files[name] += count
            users.setdefault(name, []).append(repository.rpartition("/")[2])
    table = npu_operators()
    known = {name.partition(".")[0] for name in (*table["npu"], *table["atb"])}
    text = "".join(path.read_text(encoding="utf-8") for path in OPERATORS.glob("*.py"))
    here = {name.partition(".")[0] for name in re.findall(r'^@operator\("([\w.]+)"', text, re.MULTILINE)}
    total, covered = shares.total(), sum(share for name, share in shares.items() if name in here)
    lines = [
        "# Operators by use",
        "",
        "Written by `scripts/operator_use.py`: the Python files of public repositories that call each of torch_npu's",
        "operators. Every repository weighs the same. It decided which operators came first.",
        "",
        f"Counted: {'; '.join(sources)}.",
        *([f"Not counted, their copies were not there: {', '.join(absent)}."] if absent else []),
        "",
        f"**{100 * covered / total:.1f} %** of the calls are of operators that are here.",
        "",
        "| | operator | files | share | cumulative | here | used by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    so_far = 0.0
    for place, (name, share) in enumerate(shares.most_common(), 1):
        so_far += share
        state = "yes" if name in here else "no" if name in known else "no, nor in torch_npu 2.13.0"
        figures = f"{files[name]} | {100 * share / total:.2f} % | {100 * so_far / total:.1f} %"
        lines.append(f"| {place} | `{name}` | {figures} | {state} | {', '.join(users[name])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python scripts/operator_use.py VENDOR\n")
        raise SystemExit(2)
    PAGE.write_text(_page(Path(sys.argv[1])), encoding="utf-8")
