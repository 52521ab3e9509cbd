"""scripts/vendor_tests: counting the tests of a file, from its source and the report of a run."""

import os
import subprocess
import sys

from vendor_tests.__main__ import RUN_FILE, _drawn, _failed, _merged, _page, _summary, _with_failed_again
from vendor_tests.blocks import programs
from vendor_tests.programs import run_program
from vendor_tests.suites import Suite, run_limited
from vendor_tests.tests import Results, cards_wanted, disabled_tests, static_tests

SOURCE = """
import unittest

class TestA(unittest.TestCase):
    def setUp(self): ...
    def test_one(self): ...
    def test_two(self): ...
    async def test_three(self): ...

def test_alone(): ...
def helper(): ...
"""
REPORT = """<testsuites><testsuite>
<testcase classname="TestANPU" name="test_one_npu_float32"/>
<testcase classname="TestANPU" name="test_one_npu_float16"><failure message="AssertionError: no\nmore"/></testcase>
<testcase classname="TestA" name="test_two"><skipped message="needs two"/></testcase>
<testcase classname="TestA" name="test_alone[1]"/>
</testsuite></testsuites>"""


def test_the_tests_of_a_source():
    assert static_tests(SOURCE) == ["TestA.test_one", "TestA.test_two", "TestA.test_three", "test_alone"]
    assert static_tests("not python") == []


def test_how_they_ended():
    found = Results.read(static_tests(SOURCE), REPORT, "not run")
    assert found.ended == {
        "TestA.test_one": "failed", "TestA.test_two": "skipped", "TestA.test_three": "failed", "test_alone": "passed",
    }  # fmt: skip
    assert found.errors == {"TestA.test_one": "AssertionError: no more", "TestA.test_three": "not run"}


def test_a_file_that_cannot_be_imported_counts_all_as_failed():
    found = Results.read(static_tests(SOURCE), "", "ImportError")
    assert {*found.ended.values()} == {"failed"}
    assert {*found.errors.values()} == {"ImportError"}


def test_a_test_whose_name_begins_as_another_does_is_not_the_other():
    source = """
class TestA:
    def test_lse(self): ...
    def test_lse_out(self): ...
class TestAB:
    def test_lse(self): ...
"""
    report = """<testsuites><testsuite>
<testcase classname="test_x.TestA" name="test_lse"/>
<testcase classname="test_x.TestA" name="test_lse_out"><failure message="no"/></testcase>
<testcase classname="test_x.TestABNPU" name="test_lse_npu"><skipped message="needs two"/></testcase>
</testsuite></testsuites>"""
    found = Results.read(static_tests(source), report, "not run")
    assert found.ended == {"TestA.test_lse": "passed", "TestA.test_lse_out": "failed", "TestAB.test_lse": "skipped"}


def test_a_run_of_some_files_keeps_the_results_of_the_others():
    def summary(by_file, failures, commit="1"):
        return {"suite": "x", "commit": commit, "by_file": by_file, "failures": failures}

    before = summary({"a": [1, 1, 0, 0], "b": [2, 1, 0, 1]}, {"a::T.one": "no", "b::T.two": "no"})
    found = _merged(summary({"b": [3, 0, 1, 0], "c": [1, 0, 0, 0]}, {}), before)
    assert found["by_file"] == {"a": [1, 1, 0, 0], "b": [3, 0, 1, 0], "c": [1, 0, 0, 0]}
    assert found["failures"] == {"a::T.one": "no"}
    assert [found[name] for name in ("files", "tests", "passed", "failed", "skipped", "excluded")] == [3, 7, 5, 1, 1, 0]
    other = summary({"b": [3, 0, 1, 0]}, {}, commit="2")
    assert _merged(other, before) is other


def test_tests_that_failed_are_run_again_among_the_results_of_the_others():
    suite = Suite("s", "o/n", "abc", ["test/test_*.py"])
    of_b = {"one": "passed", "two": "failed", "three": "failed", "four": "failed"}
    before = _summary(suite, {"a": Results({"x": "failed"}), "b": Results(of_b)}, {}, {("", "two"), ("", "three")})
    failed = _failed(suite, before)
    assert failed == {"a": ["x"], "b": ["two", "three", "four"]}
    again = {"b": Results({"two": "passed", "three": "skipped", "four": "failed"}, {"four": "why"})}
    summary = _summary(suite, again, {}, {("", "two"), ("", "three")})
    found = _with_failed_again(summary, before, failed, {("", "two"), ("", "three")})
    assert found["by_file"] == {"a": [0, 1, 0, 0, 0, 0], "b": [2, 1, 1, 0, 1, 0]}
    assert found["failures"] == {"a::x": "", "b::four": "why"}
    assert (found["tests"], found["passed"], found["failed"], found["disabled_passed"]) == (5, 2, 2, 1)
    assert _failed(suite, before, ["t*e"]) == {"b": ["three"]}
    assert _failed(Suite("s", "o/n", "another", []), before) == {}


def test_programs_of_a_page_are_the_blocks_that_begin_a_session_without_an_address():
    page = (
        "```python\nimport yr\nyr.init()\n```\n\n- item\n\n  ```python\n  import yr\n  yr.init()\n  ```\n"
        "```python\nyr.get(x)\n```\n```bash\nimport yr; yr.init(\n```\n"
        "```python\nimport yr\nyr.init(yr.Config(server_address='a:1'))\n```\n"
    )
    assert programs(page) == {1: "import yr\nyr.init()", 2: "import yr\nyr.init()"}


def test_how_many_cards_a_test_asks_for():
    source = """
WORLD_SIZE = 4
class TestA(MultiProcessTestCase):
    @property
    def world_size(self):
        return 2
    def test_two(self): ...
    @skipIfUnsupportMultiNPU(WORLD_SIZE)
    def test_four(self): ...
@skip_if_lt_x_gpu(8)
class TestB:
    def test_eight(self): ...
class TestC:
    world_size = 3
    def test_three(self): ...
    def helper(self): ...
@common.skipIfUnsupportMultiNPU(count())
def test_unknown(): ...
"""
    assert cards_wanted(source) == {
        "TestA.test_two": 2, "TestA.test_four": 4, "TestB.test_eight": 8, "TestC.test_three": 3, "test_unknown": 0,
    }  # fmt: skip


def test_tests_that_the_vendor_disables_are_counted_apart():
    listed = disabled_tests('{"test_one (__main__.TestA)": ["", [""]], "test_two (main.TestB)": ["", [""]]}')
    assert listed == {("TestA", "test_one"), ("TestB", "test_two")}
    ended = {
        "TestA.test_one": "failed",
        "TestA.test_two": "failed",
        "TestB.test_two": "passed",
        "TestB.test_one": "passed",
    }
    suite = Suite("x", "o/x", "1", ["a.py"])
    found = _summary(suite, {"a.py": Results(ended)}, {}, listed)
    assert found["by_file"] == {"a.py": [2, 2, 0, 0, 1, 1]}
    assert found["tests"] == 4
    assert _page([found]).splitlines()[-1].endswith("| **50.0 %** | 50.0 % | 50.0 % |")
    left_out = _summary(suite, {"a.py": Results(ended)}, {"a.py::TestA.test_one": "own assumption"}, listed)
    assert left_out["by_file"] == {"a.py": [2, 1, 0, 1, 1, 0]}


def test_files_of_a_suite_may_lie_in_folders_below(tmp_path):
    for path in ("test/a/test_one.py", "test/a/b/test_two.py", "test/a/b/helper.py", "test/test_three.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("def test_it(): ...")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    assert Suite("x", "o/x", "HEAD", ["test/a/**/test_*.py"]).paths(tmp_path) == [
        "test/a/b/test_two.py", "test/a/test_one.py",
    ]  # fmt: skip
    assert Suite("x", "o/x", "HEAD", ["test/a/test_*.py"]).paths(tmp_path) == ["test/a/test_one.py"]
    drawn = [_drawn(Suite("x", "o/x", "HEAD", ["test/**/test_*.py"], sample=2, seed=5), tmp_path) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert sum(len(tests) for tests in drawn[0].values()) == 2


def test_tests_that_ended_before_the_limit_of_their_file_were_counted_as_failed(tmp_path):
    (tmp_path / "test_a.py").write_text("import time\n\ndef test_fast(): ...\n\ndef test_slow(): time.sleep(600)\n")
    report = tmp_path / "report.xml"
    command = [sys.executable, str(RUN_FILE), "-c", os.devnull, "-p", "no:cacheprovider", f"--junitxml={report}"]
    _, status = run_limited([*command, "test_a.py"], tmp_path, 20)
    assert status is None
    assert Results.read(["test_fast", "test_slow"], report.read_text(), "too late").ended == {
        "test_fast": "passed", "test_slow": "failed",
    }  # fmt: skip


def test_a_drawn_test_was_given_the_failures_of_tests_whose_names_begin_as_its_own():
    source = "def test_dist(): ...\ndef test_dist_with_offset(): ..."
    report = """<testsuites><testsuite>
<testcase name="test_dist"/><testcase name="test_dist_with_offset"><failure message="no"/></testcase>
</testsuite></testsuites>"""
    found = Results.read(static_tests(source), report, "not run").only(["test_dist"])
    assert (found.ended, found.errors) == ({"test_dist": "passed"}, {})


def test_a_sample_that_ends_well_and_prints_a_failure_has_failed(tmp_path):
    def run(text, prints="code 0", edits=(), limit=60):
        (tmp_path / "sample.py").write_text(text)
        return run_program(tmp_path / "sample.py", prints, edits, ["--device", "cpu"], {}, limit)

    assert run("print('result:', 'code 0')").ended == {"program": "passed"}
    failed = run("print('ValueError: code 5')")
    assert (failed.ended, failed.errors) == ({"program": "failed"}, {"program": "status 0: ValueError: code 5"})
    assert run("print('code 1')", edits=[("code 1", "code 0")]).ended == {"program": "passed"}
    assert "status 1: " in run("print('code 0'); 1 / 0").errors["program"]
    assert run("import time; time.sleep(600)", limit=2).errors["program"] == "it did not end within 2 s"
