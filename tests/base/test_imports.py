"""Import hooks: a function runs after somebody else's import of a module, which looks untouched afterwards.

Holds `toprope.imports`.
"""

import importlib
import sys

import pytest

from toprope.imports import ImportHook, after_import

NAME = "imported_by_a_test"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that is not imported yet; what is imported and waits is afterwards as it was."""
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    before = list(sys.meta_path)
    yield NAME
    sys.modules.pop(NAME, None)
    sys.meta_path[:] = before


def test_a_function_is_called_once_after_the_modules_own_code(module):
    seen = []
    after_import(module, lambda: seen.append(sys.modules[module].value))
    before = len(sys.meta_path)
    assert seen == []
    importlib.import_module(module)
    assert seen == [1]
    assert len(sys.meta_path) == before - 1
    del sys.modules[module]
    importlib.import_module(module)
    assert seen == [1]


def test_of_a_module_that_is_there_it_is_called_at_once(module):
    importlib.import_module(module)
    seen = []
    after_import(module, lambda: seen.append(1))
    assert seen == [1]


def test_two_that_wait_for_one_module_are_both_called(module):
    seen = []
    for number in (1, 2):
        after_import(module, lambda number=number: seen.append(number))
    importlib.import_module(module)
    assert sorted(seen) == [1, 2]


def test_a_module_has_its_own_loader_and_others_are_left_alone(module):
    class Hook(ImportHook):
        def load(self, module, execute):
            module.before = True
            execute()
            module.value += 1

    hook = Hook((module,))
    sys.meta_path.insert(0, hook)
    found = importlib.import_module(module)
    assert (found.before, found.value) == (True, 2)
    assert found.__loader__ is found.__spec__.loader
    assert type(found.__loader__).__module__ != "toprope.imports"
    assert hook.find_spec("json") is None
    assert Hook(("there_is_no_such_module",)).find_spec("there_is_no_such_module") is None
