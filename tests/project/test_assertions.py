"""Assertions of a base commit are found again where they are now, and those on wall-clock times are counted apart.

Holds scripts/assertions.py.
"""

import textwrap

import pytest

import assertions


def functions(**files):
    return assertions.functions(
        (f"tests/{name}.py", textwrap.dedent(text)) for name, text in files.items()
    )  # fmt: skip


BASE = """
    import time, pytest
    SOON = 5.0

    assert SOON

    def test_a():
        assert f(1) == "x", "the message"
        assert f(1) == "x"
        with pytest.raises(ValueError, match="y"):
            f(2)
        torch.testing.assert_close(a, b)

    class TestB:
        def test_a(self):
            assert g()

    def helper():
        def inner():
            assert 1 < h()
        begin = time.monotonic()
        assert time.monotonic() - begin < 2
"""


def test_moved_files_and_new_messages_are_no_difference():
    now = functions(other=BASE.replace("the message", "another"), test_more="def test_c():\n    assert True\n")
    result = assertions.compare(functions(base=BASE), now)
    assert len(result.base) == 8
    assert len(result.now) == 9
    # code outside functions has no name to be found by
    assert [each.text for each in result.moved] == ["assert SOON"]
    assert result.gone == []


def test_gone_changed_and_moved_assertions():
    now = functions(
        base=BASE.replace('        assert f(1) == "x"\n', "").replace("assert g()", "assert g(0)"),
        new="def test_new():\n    assert 1 < h()\n",
    )
    # from test_a one of two equal assertions is gone
    result = assertions.compare(functions(base=BASE), now)
    assert [(each.text, near) for each, near in result.gone] == [
        ("assert f(1) == 'x'", None),
        ("assert g()", "assert g(0)"),
    ]
    gone = functions(base=BASE.replace("assert 1 < h()", "pass"), new="def test_new():\n    assert 1 < h()\n")
    result = assertions.compare(functions(base=BASE), gone)
    assert [each.text for each in result.moved] == ["assert 1 < h()"]
    assert result.gone == []


@pytest.mark.parametrize(
    ("code", "bound"),
    [
        ("begin = time.monotonic()\n    assert time.monotonic() - begin < 2", 2),
        ("begin = perf_counter()\n    assert 0.1 < perf_counter() - begin <= 4.5", 4.5),
        ("begin = time.time()\n    took = time.time() - begin\n    assert 3 > took", 3),
        ("took = []\n    took.append(time.monotonic() - begin)\n    assert max(took) < 1", 1),
        ("assert any(seconds() < 0.2 for _ in range(20))", 0.2),
        ("assert time.monotonic() - begin < SOON", 5),
        ("assert time.monotonic() - begin < within", 2),
        ("assert time.monotonic() - begin > 0.1", None),
        ("assert time.monotonic() < until", None),
        ("assert time.process_time() - begin < 2", None),
        ("assert link.wait(time.monotonic() + 1) < 2", None),
        ("assert len(took) < 2", None),
    ],
)
def test_upper_bounds_on_wall_clock_times(code, bound):
    module = f"""
SOON = 5
def seconds():
    begin = time.monotonic()
    return time.monotonic() - begin
def test(within=2):
    {code}
"""
    (found,) = assertions.functions([("tests/test_x.py", module)])[("tests/test_x.py", "test")]
    assert found.bound == bound


def test_the_report_counts_and_fails_only_for_other_assertions(monkeypatch, capsys):
    monkeypatch.setattr(assertions, "commit_files", lambda commit: [("tests/test_a.py", textwrap.dedent(BASE))])
    now = textwrap.dedent(BASE).replace("    assert time.monotonic() - begin < 2\n", "")
    monkeypatch.setattr(assertions, "tree_files", lambda: [("tests/b/test_a.py", now)])
    assert assertions.main(["--base", "abc"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "tests/test_a.py:22: gone (wall-clock time below 5 s): assert time.monotonic() - begin < 2",
        "8 assertions at abc, 7 now.",
        "7 of the old are kept, 0 in another function.",
        "0 are gone or changed, and 1 more that bound a wall-clock time below 5 s.",
        "Wall-clock times had 1 upper bounds below 5 s and 0 of 5 s or more; below 5 s are now 0.",
    ]
    monkeypatch.setattr(assertions, "tree_files", lambda: [("tests/b/test_a.py", now.replace("g()", "g(0)"))])
    assert assertions.main([]) == 1
    assert "tests/test_a.py:16: changed: assert g()\n  now: assert g(0)\n" in capsys.readouterr().out
