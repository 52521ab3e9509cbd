"""Errors of toprope: every class is exported and documented, has a page in docs/errors, and says what to do.

Holds src/toprope/errors.py.
"""

import inspect
import pathlib
import pickle

import pytest

from toprope import errors

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLASSES = [getattr(errors, name) for name in errors.__all__]
LEAVES = [each for each in CLASSES if not each.__subclasses__()]


def test_every_class_of_the_module_is_exported():
    written = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert written == set(errors.__all__)


@pytest.mark.parametrize("error", CLASSES)
def test_says_in_a_docstring_when_it_happens(error):
    assert error.__doc__
    assert error.__doc__ != inspect.getdoc(error.__base__)
    assert error.__doc__.strip().endswith(".")


@pytest.mark.parametrize("error", CLASSES)
def test_is_in_the_drawn_tree_under_its_parent(error):
    drawn = {}  # name -> (column, line)
    for number, line in enumerate(errors.__doc__.splitlines()):
        word = line.lstrip(" │├└─").split(" ")[0]
        if word in errors.__all__:
            drawn[word] = (line.index(word), number)
    assert error.__name__ in drawn
    column, number = drawn[error.__name__]
    above = [name for name, (other, line) in drawn.items() if line < number and other < column]
    parent = max(above, key=lambda name: drawn[name][1], default="")
    assert parent == (error.__base__.__name__ if error is not errors.TopropeError else "")


@pytest.mark.parametrize("error", CLASSES)
def test_is_one_of_ours_and_ends_the_command_line_with_a_known_status(error):
    assert issubclass(error, errors.TopropeError)
    assert error.exit_status in (1, 2, 3)


@pytest.mark.parametrize("error", LEAVES)
def test_has_a_page(error):
    text = (ROOT / "docs" / "errors" / f"{error.page}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {error.__name__}\n")
    assert "\n## What to do\n" in text


def test_no_page_without_an_error():
    pages = {page.stem.removesuffix(".zh") for page in (ROOT / "docs" / "errors").glob("*.md")} - {"index"}
    assert pages == {error.page for error in CLASSES if error.page}


@pytest.mark.parametrize("error", CLASSES)
def test_text_has_what_happened_what_was_looked_at_and_what_to_do(error):
    text = str(error("it broke.", looked_at="the facts", do="fix it"))
    lines = text.splitlines()
    assert lines[:3] == ["it broke.", "  looked at  the facts", "  do         fix it"]
    assert lines[3:] == ([f"  more       toprope explain {error.page}"] if error.page else [])


@pytest.mark.parametrize("error", CLASSES)
def test_leaves_out_what_it_was_not_given(error):
    assert str(error("it broke.")).splitlines()[0] == "it broke."
    assert "looked at" not in str(error("it broke."))
    assert "  do  " not in str(error("it broke."))


@pytest.mark.parametrize("error", CLASSES)
def test_pickles(error):
    sent = error("it broke.", looked_at="the facts", do="fix it")
    got = pickle.loads(pickle.dumps(sent))
    assert type(got) is error
    assert (got.what, got.looked_at, got.do, str(got)) == (sent.what, sent.looked_at, sent.do, str(sent))


def test_standard_handlers_catch_them():
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.EnvironmentProblem, RuntimeError)
    assert issubclass(errors.SimulatorError, RuntimeError)
