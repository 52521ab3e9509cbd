"""Run the vendor's tests on the simulated card, and write results.toml and its table in docs/compat.md.

    python scripts/vendor_tests VENDOR [--suite TEXT] [--files PATTERN ...] [--failed [PATTERN ...]]
                                [--limit SECONDS] [--each SECONDS] [--again]

VENDOR holds copies of the repositories, each in a folder named OWNER+NAME: a clone, or a bare one in `repo`. A missing
one is skipped by name. Each file runs in a process of its own; so does each Python program in a page of documentation.
What it gave is kept in VENDOR/.results by the content of the file and of toprope, so that a run that was stopped goes
on where it was. With --suite or --files the results of the other files stay as they are written; with --failed only
tests that failed are run, or those of them whose names match, and the results of the others stay. Some files want
einops and torchvision, which are no requirement of toprope.

Called as `make vendor VENDOR=FOLDER`, by hand, for hours. Suites and left-out tests are in suites.toml, and a test is
left out only with one of the reasons there; `suites` runs files, `tests` counts them, `blocks` and `programs` run
documents and samples, `functions` has openYuanrong's surroundings.

Tests: tests/project/test_vendor_tests.py, of counting, drawing and merging; nothing runs the suites.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from vendor_tests.blocks import run_blocks
from vendor_tests.functions import started
from vendor_tests.programs import run_program
from vendor_tests.suites import ROOT, Suite, chosen, run_limited, say, without_folders
from vendor_tests.tests import Results, cards_wanted, disabled_tests, static_tests

TABLE, PAGE = Path(__file__).with_name("results.toml"), ROOT / "docs" / "compat.md"
BEGIN, END = "<!-- begin: written by `make vendor` -->", "<!-- end: written by `make vendor` -->"
RUN_FILE = Path(__file__).with_name("run_file.py")
COUNTS = ("passed", "failed", "skipped", "excluded")
OF_THESE = ("disabled_passed", "disabled_failed")


def _sources() -> str:
    """A hash of what a result depends on apart from the test: toprope's sources and torch's version."""
    found = hashlib.sha256()
    for path in sorted((ROOT / "src" / "toprope").rglob("*")):
        if path.suffix in (".py", ".toml", ".cpp", ".h") and "__pycache__" not in path.parts:
            found.update(path.read_bytes())
    return found.hexdigest()


def _drawn(suite: Suite, clone: Path) -> dict[str, list[str]]:
    """The tests of a suite that are run, by file: all of them, or a sample."""
    by_file = {path: suite.source(clone, path) for path in suite.paths(clone)}
    if not suite.sample:
        is_tests = not suite.blocks and not suite.prints
        return {path: static_tests(source) if is_tests else [] for path, source in by_file.items()}
    every = [
        (path, test)
        for path, source in by_file.items()
        for test, cards in cards_wanted(source).items()
        if cards <= suite.cards
    ]
    drawn = random.Random(suite.seed).sample(every, suite.sample)
    say(f"{suite.name}: {suite.sample} of {len(every)} tests for at most {suite.cards} cards, seed {suite.seed}")
    return {path: [test for of, test in every if of == path and (of, test) in drawn] for path in sorted({*dict(drawn)})}


def _run(
    suite: Suite, folder: Path, path: str, only: list[str], limit: float, each: float, variables: dict[str, str]
) -> tuple[str, str]:
    """JUnit's report of a file, and what else there is to say if a test is not in it.

    Args:
        suite: of the file.
        folder: with the files of the repository.
        path: of the file.
        only: tests to run; all of the file where it is empty.
        limit: seconds for the file.
        each: seconds for a test.
        variables: environment variables of the tests.
    """
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "toprope", "run", "--quiet", *suite.run, str(RUN_FILE), "-q",
        "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder), f"--junitxml={report}",
        f"--timeout={each:g}",  # one slow test must not cost the others of its file
    ]  # fmt: skip
    if only:
        command += ["-k", " or ".join(f"({test.replace('.', ' and ')})" for test in only)]
    command.append(Path(path).name)
    path_of_tools = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}"  # python, torchrun
    output, status = run_limited(command, (folder / path).parent, limit, {"PATH": path_of_tools, **variables})
    otherwise = f"not run: the process ended with status {status}"
    if status is None:
        otherwise = f"not run: the file did not end within {limit:g} s"
    text = report.read_text(encoding="utf-8") if report.exists() else ""
    if not text:
        lines = [line for line in output.splitlines() if line.strip()]
        otherwise += (
            ": " + next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")[:200]
        )
    return text, otherwise


def _results(
    suite: Suite,
    clone: Path,
    kept: Path,
    sources: str,
    arguments: argparse.Namespace,
    failed: dict[str, list[str]] | None,
) -> Iterator[tuple[str, Results]]:
    """Yield each file that is run, with its results.

    Args:
        suite: of the files.
        clone: copy of the repository.
        kept: folder of the results.
        sources: hash of what they depend on besides.
        arguments: of the command line.
        failed: the tests of each file that are run; None for all.
    """
    with tempfile.TemporaryDirectory() as name, started(suite.start) as variables:
        folder, limit = Path(name), suite.limit or arguments.limit
        each = arguments.each or limit / 2
        variables |= suite.environment
        suite.unpack(clone, folder)
        if suite.before:
            where = folder / suite.files[0].rpartition("/")[0]
            subprocess.run([sys.executable, "-c", suite.before], cwd=where, check=True)
        for path, tests in _drawn(suite, clone).items():
            if arguments.files and not any(fnmatch.fnmatch(Path(path).name, each) for each in arguments.files):
                continue
            if failed is not None:
                tests = failed.get(path, [])
                if not tests:
                    continue
            source = (folder / path).read_bytes()
            only = tests if suite.sample or failed is not None else []
            key = hashlib.sha256(source + sources.encode() + " ".join(only).encode()).hexdigest()[:24]
            file = kept / f"{Path(path).stem}-{key}.json"
            if file.exists() and not arguments.again:
                results = Results(**json.loads(file.read_text()))
            else:
                if suite.blocks:
                    results = run_blocks(source.decode(), suite.run, variables, limit)
                elif suite.prints:
                    name = Path(path).name
                    edits = [(old, new) for old, new in suite.edits.get(name, ())]
                    results = run_program(folder / path, suite.prints[name], edits, suite.run, variables, limit)
                else:
                    every = static_tests(source.decode())  # also those that -k runs besides: no result is theirs
                    ran = _run(suite, folder, path, only, limit, each, variables) if every else ("", "")
                    results = Results.read(every, *ran).only(tests)
                file.write_text(json.dumps(vars(results)))
            if suite.blocks and not results.ended:
                continue
            counts = Counter(results.ended.values())
            ended = ", ".join(f"{counts[name]} {name}" for name in ("passed", "failed", "skipped"))
            say(f"{path}: {ended}")
            yield path, results


def _excluded(known: dict[str, Any]) -> dict[str, str]:
    """Reason of each test that is left out: "test/npu/test_x.py::Class.test" or "test/npu/test_x.py"."""
    found = {}
    for entry in known.get("exclusion", ()):
        if entry["reason"] not in known["reasons"]:
            raise SystemExit(f"{entry['test']}: {entry['reason']!r} is no reason")
        found[entry["test"]] = entry["reason"]
    return found


def _summary(
    suite: Suite, results: dict[str, Results], excluded: dict[str, str], disabled: set[tuple[str, str]]
) -> dict[str, Any]:
    failures: dict[str, str] = {}
    by_file: dict[str, list[int]] = {}
    for path, each in results.items():
        counts: Counter[str] = Counter()
        for test, ended in each.ended.items():
            left_out = f"{path}::{test}" in excluded or path in excluded
            ended = "excluded" if left_out and ended != "passed" else ended
            counts[ended] += 1
            of_class, _, name = test.rpartition(".")
            counts[f"disabled_{ended}"] += (of_class, name) in disabled
            if ended == "failed" and not left_out:
                failures[f"{path}::{test}"] = without_folders(each.errors.get(test, ""))
        by_file[path] = [counts[name] for name in COUNTS + OF_THESE]
    head: dict[str, Any] = {"suite": suite.name, "repository": suite.repository, "commit": suite.commit}
    if suite.sample:
        head |= {"sample": suite.sample, "seed": suite.seed}
    return head | _sums(by_file) | {"by_file": by_file, "failures": failures}


def _sums(by_file: dict[str, list[int]]) -> dict[str, int]:
    names = COUNTS + OF_THESE
    sums = [sum(column) for column in itertools.zip_longest(*by_file.values(), fillvalue=0)] or [0] * len(names)
    tests = sum(sums[: len(COUNTS)])
    return {"files": len(by_file), "tests": tests, **dict(itertools.zip_longest(names, sums, fillvalue=0))}


def _merged(summary: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    """A summary with the files that another one has besides."""
    if before is None or before["commit"] != summary["commit"]:
        return summary
    run = summary["by_file"]
    by_file = dict(sorted({**before.get("by_file", {}), **run}.items()))
    kept = {test: text for test, text in before["failures"].items() if test.partition("::")[0] not in run}
    failures = dict(sorted({**kept, **summary["failures"]}.items()))
    return summary | _sums(by_file) | {"by_file": by_file, "failures": failures}


def _with_failed_again(
    summary: dict[str, Any], before: dict[str, Any], failed: dict[str, list[str]], disabled: set[tuple[str, str]]
) -> dict[str, Any]:
    """A summary of tests that failed before, among the results of the others.

    Args:
        summary: of the tests that were run again.
        before: of all.
        failed: the tests that were run again, by file.
        disabled: class and name of those that the vendor disables.
    """
    by_file, failures = dict(before["by_file"]), dict(before["failures"])
    for path, row in summary["by_file"].items():
        again = failed[path]
        of_disabled = sum((test.rpartition(".")[0], test.rpartition(".")[2]) in disabled for test in again)
        removed = (0, len(again), 0, 0, 0, of_disabled)
        columns = itertools.zip_longest(by_file[path], row, removed, fillvalue=0)
        by_file[path] = [was + now - gone for was, now, gone in columns]
        for test in again:
            del failures[f"{path}::{test}"]
    failures = dict(sorted((failures | summary["failures"]).items()))
    return summary | _sums(by_file) | {"by_file": by_file, "failures": failures}


def _failed(suite: Suite, before: dict[str, Any] | None, patterns: Sequence[str] = ()) -> dict[str, list[str]]:
    """The tests of a suite that failed, by file; programs are run by file, and not again one by one.

    Args:
        suite: of the tests.
        before: its results.
        patterns: of names of tests that are wanted; none for all.
    """
    found: dict[str, list[str]] = {}
    if before is not None and before["commit"] == suite.commit and not suite.blocks and not suite.prints:
        for entry in before["failures"]:
            path, _, test = entry.partition("::")
            if not patterns or any(fnmatch.fnmatch(test.rpartition(".")[2], pattern) for pattern in patterns):
                found.setdefault(path, []).append(test)
    return found


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _page(summaries: list[dict[str, Any]]) -> str:
    lines = [
        "| suite | files | tests | passed | failed | skip themselves | left out | share | with those left out"
        " | without the vendor's disabled tests |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in summaries:
        passed, run = each["passed"], each["passed"] + each["failed"]
        cells = [f"{each['suite']} (`{each['repository']}` {each['commit'][:8]})"]
        cells += [str(each[name]) for name in ("files", "tests", "passed", "failed", "skipped", "excluded")]
        cells += [f"**{_share(passed, run)}**", _share(passed, run + each["excluded"])]
        enabled = passed - each.get("disabled_passed", 0)
        cells.append(_share(enabled, run - sum(each.get(name, 0) for name in OF_THESE)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _write(summaries: list[dict[str, Any]]) -> None:
    out = [
        "# How the vendor's tests end on the simulated card. Written by `make vendor`; do not edit.",
        f"# by_file: {', '.join(COUNTS)}; of these {', '.join(OF_THESE)}: by the vendor's list of disabled tests.",
    ]
    for each in summaries:
        tables = {name: value for name, value in each.items() if isinstance(value, dict)}
        out.append("\n[[suite]]")
        out += [f"{name} = {_toml(value)}" for name, value in each.items() if name not in tables]
        for name, table in tables.items():
            out.append(f"[suite.{name}]")
            out += [f"{_toml(key)} = {_toml(value)}" for key, value in table.items()]
    TABLE.write_text("\n".join(out) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{_page(summaries)}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vendor", type=Path)
    parser.add_argument("--suite", default="", help="only suites whose name contains this")
    parser.add_argument("--files", nargs="+", help="only files of these names (* and ? as in a shell)")
    parser.add_argument("--failed", nargs="*", metavar="PATTERN", help="only tests that failed, with these names")
    parser.add_argument("--limit", type=float, default=300, help="seconds for a file")
    parser.add_argument("--each", type=float, help="seconds for a test (half of those for its file)")
    parser.add_argument("--again", action="store_true", help="run files whose results are kept, too")
    arguments = parser.parse_args()
    known = tomllib.loads(Path(__file__).with_name("suites.toml").read_text(encoding="utf-8"))
    written = _written()
    excluded, sources = _excluded(known), _sources()
    ran = []
    for suite, clone in chosen(known["suite"], arguments.vendor, arguments.suite):
        kept = arguments.vendor / ".results" / suite.name.replace(" ", "-").replace(",", "")
        kept.mkdir(parents=True, exist_ok=True)
        disabled = disabled_tests(suite.source(clone, suite.disabled)) if suite.disabled else set()
        failed = None if arguments.failed is None else _failed(suite, written.get(suite.name), arguments.failed)
        results = dict(_results(suite, clone, kept, sources, arguments, failed))
        summary = _summary(suite, results, excluded, disabled)
        say(_page([summary]))
        ran.append((summary, failed, disabled))
    found = _written()  # another run may have ended meanwhile
    for summary, failed, disabled in ran:
        name = summary["suite"]
        if failed is not None:
            if summary["by_file"]:
                found[name] = _with_failed_again(summary, found[name], failed, disabled)
        elif not arguments.files:
            found[name] = summary
        elif summary["by_file"]:
            found[name] = _merged(summary, found.get(name))
    _write([found[entry["name"]] for entry in known["suite"] if entry["name"] in found])


def _written() -> dict[str, dict[str, Any]]:
    """The results that are written, by suite."""
    return {each["suite"]: each for each in tomllib.loads(TABLE.read_text(encoding="utf-8"))["suite"]}


if __name__ == "__main__":
    _main()
