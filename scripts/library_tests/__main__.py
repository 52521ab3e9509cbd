"""Run other libraries' tests on the CPU and on the simulated card, and write which end differently.

    python scripts/library_tests SOURCES [--suite TEXT] [--file TEXT] [--only TEXT] [--limit SECONDS]
        [--again | --differences | --kept]

SOURCES holds copies of the repositories, each in a folder named OWNER+NAME: a clone, or a bare one in `repo`. A missing
one is skipped by name and keeps its results. A repository's own sources, at the same commit, go before the installed
package; what its tests import and this environment lacks belongs in SOURCES/packages (`pip install --no-deps
--target`). Each file runs in a process of its own for each device, or all files of a suite in one. How tests end is
kept in SOURCES/.ends, so a run that was stopped goes on where it was. The results are written to results.toml, and
their table to docs/compat.md.

Run by hand, for hours. Suites and the known reasons of differences are in suites.toml, how a process records its tests
in `ends`; clones and limits come from scripts/vendor_tests. Statuses 0, 1 and 5 are pytest's; TRANSFORMERS_TEST_DEVICE
and DIFFUSERS_TEST_DEVICE are the libraries' own.

Tests: tests/project/test_library_tests.py, of counting and merging; nothing runs the suites.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from library_tests.ends import Ends
from vendor_tests.suites import ROOT, Suite, chosen, run_limited, say, without_folders

KNOWN, TABLE = (Path(__file__).with_name(name) for name in ("suites.toml", "results.toml"))
PAGE = ROOT / "docs" / "compat.md"
ONLY = "test_(?!dtypeview)"
BEGIN, END = (f"<!-- {word}: written by `python scripts/library_tests` -->" for word in ("begin", "end"))
DEVICES = ("cpu", "npu")
CARD = ["-m", "toprope", "run", "--quiet", "--chip", "910B3", "--count", "2"]
PYTEST = ["-m", "pytest", "-q", "-p", "library_tests.ends", "-p", "no:cacheprovider", "--tb=short"]


def _environment(sources: Path, folder: Path, device: str, ends: Path) -> dict[str, str]:
    path = [sources / "packages", folder / "src", ROOT / "src", ROOT / "scripts"]
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {
        "PATH": commands, "PYTHONPATH": os.pathsep.join(map(str, path)), "ENDS": str(ends), "OMP_NUM_THREADS": threads,
        "TRANSFORMERS_TEST_DEVICE": device, "DIFFUSERS_TEST_DEVICE": device, "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(sources / ".home"),
    }  # fmt: skip


def _run(sources: Path, folder: Path, paths: list[str], device: str, ends: Path, arguments: argparse.Namespace) -> str:
    """Run files until no test of it is left; the last output. Nothing is run if an earlier call got that far."""
    whole = ends.with_suffix(f".whole{arguments.only}")
    command = [sys.executable, *(CARD if device == "npu" else ()), *PYTEST, "--timeout", str(arguments.limit)]
    command += ["-k", arguments.only] if arguments.only else []
    output, status = "", 0 if whole.exists() else None
    while status not in (0, 1, 5):  # pytest ended: all passed, some failed, none left
        known = len(Ends.read(ends).ended)
        output, status = run_limited(
            [*command, *paths], folder, 20 * arguments.limit, _environment(sources, folder, device, ends)
        )
        if len(Ends.read(ends).ended) == known:
            break
    if status in (0, 1, 5):
        whole.touch()
    return output


def _run_sample(suite: Suite, path: Path, ends: Path, arguments: argparse.Namespace) -> None:
    """Run a sample of torch's tests of Inductor on both devices."""
    command = [sys.executable, str(ROOT / "scripts" / "inductor_tests.py"), str(path), "--ends", str(ends)]
    command += ["--count", str(suite.sample), "--limit", str(arguments.limit), "--only", ONLY]
    run_limited(command, ROOT, 200 * arguments.limit, {"PYTHONPATH": str(ROOT / "src")})


def _forget(both: list[Path], every: bool) -> None:
    """Forget how tests ended: all, or those that ended differently."""
    ends = [Ends.read(path) for path in both]
    again = {
        test for each in ends for test in each.ended if every or ends[0].ended.get(test) != ends[1].ended.get(test)
    }
    for path in both:
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            for whole in path.parent.glob(f"{path.stem}.whole*"):
                whole.unlink()
            path.write_text("".join(line for line in lines if json.loads(line)[0] not in again), encoding="utf-8")


def _summary(suite: Suite, ends: dict[str, Ends], files: int, reasons: list[dict[str, str]]) -> dict[str, Any]:
    """Counts of a suite on both devices, and each test that ends differently with a known reason or none."""
    host, card = (ends[device] for device in DEVICES)
    differences = {}
    for test in sorted({*host.ended, *card.ended}):
        on = [each.ended.get(test, "not there") for each in (host, card)]
        if on[0] != on[1]:
            # Why it is skipped on the CPU is no reason to fail on the card.
            which = (card,) if on[1] in ("failed", "died") and on[0] == "skipped" else (host, card)
            reasoned = " / ".join(each.texts.get(test, "") for each in which)
            text = without_folders(" / ".join(filter(None, (each.texts.get(test, "") for each in (host, card)))))
            reason = (
                "not run on the card"
                if on[1] == "not there"
                else next(
                    (
                        each["reason"]
                        for each in reasons
                        if each.get("test", "") in test and each.get("text", "") in reasoned
                    ),
                    "",
                )
            )
            differences[test] = [*on, reason, text]
    counts = {device: Counter(ends[device].ended.values()) for device in DEVICES}
    return {
        "suite": suite.name, "repository": suite.repository, "commit": suite.commit, "files": files,
        "tests": len(host.ended), **{
            f"{name}_{device}": counts[device][name] for name in ("passed", "failed", "skipped") for device in DEVICES
        }, "differences": differences,
    }  # fmt: skip


def _page(summaries: list[dict[str, Any]]) -> str:
    """The tables for docs/compat.md."""
    names = ("files", "tests", "passed_cpu", "passed_npu", "failed_cpu", "failed_npu", "skipped_cpu", "skipped_npu")
    heads = [name.replace("_", ", ") for name in names]
    lines = [f"| suite | {' | '.join(heads)} | differ | for a known reason |", "| --- " * (len(names) + 3) + "|"]
    for each in summaries:
        differ = each["differences"].values()
        cells = [f"{each['suite']} (`{each['repository']}` {each['commit'][:8]})"]
        cells += [str(each[name]) for name in names]
        cells += [str(len(differ)), str(sum(bool(reason) for _, _, reason, _ in differ))]
        lines.append("| " + " | ".join(cells) + " |")
    counts = Counter(reason for each in summaries for _, _, reason, _ in each["differences"].values())
    lines += ["", "| why tests differ | tests |", "| --- | --- |"]
    lines += [f"| {reason or 'not known'} | {count} |" for reason, count in counts.most_common()]
    return "\n".join(lines)


def _with_known(summaries: list[dict[str, Any]], known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of the suites that ran, and the known ones of those that did not, where they were."""
    ran = {each["suite"]: each for each in summaries}
    return [ran.pop(each["suite"], each) for each in known] + [*ran.values()]


def _write(summaries: list[dict[str, Any]]) -> None:
    """Write results.toml, and the tables between the marks of docs/compat.md."""
    out = [
        "# Tests that end differently on the CPU and on the simulated card: on the CPU, on the card, why, the texts."
    ]
    out.append("# Written by `python scripts/library_tests`; do not edit.")
    for each in summaries:
        out.append("\n[[suite]]")
        out += [f"{name} = {json.dumps(value)}" for name, value in each.items() if name != "differences"]
        out.append("[suite.differences]")
        out += [f"{json.dumps(test)} = {json.dumps(text)}" for test, text in each["differences"].items()]
    TABLE.write_text("\n".join(out) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{_page(summaries)}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _ends(suite: Suite, clone: Path, arguments: argparse.Namespace) -> tuple[dict[str, Ends], int]:
    """How the tests of a suite end on each device, and the number of its files."""
    sources = arguments.sources.resolve()
    kept = sources / ".ends" / suite.name.replace(" ", "-")
    ends, files = {device: Ends() for device in DEVICES}, set[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        suite.unpack(clone, folder)
        paths = [path for path in suite.paths(clone) if arguments.file in path]
        if not paths:
            return ends, 0
        for group in [paths] if suite.together else [[path] for path in paths]:
            stem = Path(group[0]).stem if suite.sample else group[0].replace("/", ".")
            both = [kept / device / f"{stem}.jsonl" for device in DEVICES]
            if arguments.again or arguments.differences:
                _forget(both, arguments.again)
            if suite.sample and not arguments.kept:
                _run_sample(suite, folder / group[0], kept, arguments)
            for device, file in zip(DEVICES, both, strict=True):
                file.parent.mkdir(parents=True, exist_ok=True)
                if not (suite.sample or arguments.kept):
                    output = _run(sources, folder, group, device, file, arguments)
                    if not file.exists():
                        say(output[-2000:])
                found = Ends.read(file)
                ends[device].ended.update(found.ended)
                ends[device].texts.update(found.texts)
                say(f"{group[0]}, {device}: {dict(Counter(found.ended.values()))}")
                files |= {group[0] if suite.sample else test.partition("::")[0] for test in found.ended}
    return ends, len(files)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--suite", default="", help="only suites whose name contains this; nothing is written")
    parser.add_argument("--file", default="", help="only files whose path contains this; nothing is written")
    parser.add_argument("--only", default="", help="only tests that pytest's -k chooses")
    parser.add_argument("--limit", type=int, default=120, help="seconds for a test; a file has 20 times as many")
    parser.add_argument("--again", action="store_true", help="run files whose ends are kept, too")
    parser.add_argument("--differences", action="store_true", help="run the tests that ended differently again")
    parser.add_argument("--kept", action="store_true", help="run nothing: write what is kept")
    arguments = parser.parse_args()
    known, summaries = tomllib.loads(KNOWN.read_text(encoding="utf-8")), []
    for suite, clone in chosen(known["suite"], arguments.sources, arguments.suite):
        ends, files = _ends(suite, clone, arguments)
        if not files:
            continue
        summaries.append(_summary(suite, ends, files, known.get("difference", [])))
        for test, (host, card, reason, text) in summaries[-1]["differences"].items():
            say(f"{test}: {host} on cpu, {card} on npu: {reason or text}")
        say(_page(summaries[-1:]))
    if summaries and not arguments.suite and not arguments.file:
        written = tomllib.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
        _write(_with_known(summaries, written.get("suite", [])))


if __name__ == "__main__":
    _main()
