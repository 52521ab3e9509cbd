"""How scripts/vendor_tests counts the tests of a file, with its source and the report of a run."""

from vendor_tests.__main__ import _merged
from vendor_tests.blocks import programs
from vendor_tests.tests import Results, static_tests

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


def test_programs_of_a_page_are_the_blocks_that_begin_a_session_without_an_address():
    page = (
        "```python\nimport yr\nyr.init()\n```\n\n- item\n\n  ```python\n  import yr\n  yr.init()\n  ```\n"
        "```python\nyr.get(x)\n```\n```bash\nimport yr; yr.init(\n```\n"
        "```python\nimport yr\nyr.init(yr.Config(server_address='a:1'))\n```\n"
    )
    assert programs(page) == {1: "import yr\nyr.init()", 2: "import yr\nyr.init()"}
