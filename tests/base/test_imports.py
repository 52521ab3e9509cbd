"""Import hooks (`toprope.imports`): what runs with the import of a module, and that the module looks as without it."""

import importlib
import sys

import pytest

from toprope.imports import ImportHook, after_import


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of modules; what is imported from it, and the finders that a test adds, go with the test."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def finders():
    return [each for each in sys.meta_path if isinstance(each, ImportHook)]


class Noted(ImportHook):
    """Notes what a module has before and after its code has run."""

    def __init__(self, names):
        super().__init__(names)
        self.said = []

    def load(self, module, execute):
        self.said.append((module.__name__, hasattr(module, "VALUE")))
        execute()
        self.said.append((module.__name__, hasattr(module, "VALUE")))


def test_a_hook_acts_before_and_after_the_code_of_its_modules_alone(folder):
    for name in ("one_of_mine", "one_of_others"):
        (folder / f"{name}.py").write_text("VALUE = 3\n")
    hook = Noted(("one_of_mine",))
    sys.meta_path.insert(0, hook)
    assert importlib.import_module("one_of_others").VALUE == importlib.import_module("one_of_mine").VALUE == 3
    assert hook.said == [("one_of_mine", False), ("one_of_mine", True)]


def test_a_module_looks_as_if_no_hook_had_been_there(folder):
    (folder / "plain_one.py").write_text("VALUE = 3\n")
    plain = importlib.import_module("plain_one")
    loader, cached, spec = type(plain.__loader__), plain.__cached__, plain.__spec__
    del sys.modules["plain_one"]
    sys.meta_path.insert(0, Noted(("plain_one",)))
    hooked = importlib.import_module("plain_one")
    assert type(hooked.__loader__) is type(hooked.__spec__.loader) is loader
    assert (hooked.__cached__, hooked.__spec__) == (cached, spec)
    assert hooked.__loader__.get_source("plain_one") == "VALUE = 3\n"


def test_several_hooks_act_on_one_module(folder):
    (folder / "shared_one.py").write_text("VALUE = 3\n")
    hooks = [Noted(("shared_one",)), Noted(("shared_one",))]
    sys.meta_path[:0] = hooks
    importlib.import_module("shared_one")
    assert [each.said for each in hooks] == [[("shared_one", False), ("shared_one", True)]] * 2


def test_a_module_that_is_not_there_is_missing_as_without_a_hook(folder):
    sys.meta_path.insert(0, Noted(("missing_one",)))
    with pytest.raises(ModuleNotFoundError, match="missing_one"):
        importlib.import_module("missing_one")


def test_a_function_runs_once_after_an_import_or_at_once_where_that_is_over(folder):
    (folder / "later_one.py").write_text("VALUE = 3\n")
    done = []
    after_import("later_one", lambda: done.append(sys.modules["later_one"].VALUE))
    assert done == []
    importlib.import_module("later_one")
    assert done == [3]
    assert not finders()
    after_import("later_one", lambda: done.append("at once"))
    assert done == [3, "at once"]
    assert not finders()


def test_a_function_does_not_run_where_the_import_fails(folder):
    (folder / "broken_one.py").write_text("raise ValueError('broken')\n")
    done = []
    after_import("broken_one", lambda: done.append(1))
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module("broken_one")
    assert done == []
