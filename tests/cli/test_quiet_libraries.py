"""Levels of diffusers' and transformers' logs before they are imported: quiet, unless the user asked for more.

Holds `cli.libraries`.
"""

import logging
import os
import warnings

import pytest

from toprope.cli.libraries import quiet_libraries

NAMES = ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY")


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """No level is set; variables, levels and filters are afterwards what they were."""
    for name in NAMES:
        monkeypatch.setenv(name, "")
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [each.level for each in loggers]
    with warnings.catch_warnings():
        yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def test_both_log_errors_alone():
    quiet_libraries()
    assert [os.environ[name] for name in NAMES] == ["error", "error"]


@pytest.mark.parametrize("name", NAMES)
def test_a_level_of_the_user_stays_and_the_other_is_left_alone(name, monkeypatch):
    monkeypatch.setenv(name, "info")
    quiet_libraries()
    assert {each: os.environ[each] for each in NAMES} == dict.fromkeys(NAMES, "") | {name: "info"}


def test_hints_of_packages_below_them_are_quiet_and_their_errors_are_not():
    quiet_libraries()
    for name in ("torchao", "torch.utils._pytree"):
        assert not logging.getLogger(name).isEnabledFor(logging.WARNING)
        assert logging.getLogger(name).isEnabledFor(logging.ERROR)


def test_pillows_warning_of_a_large_picture_is_not_shown_and_others_are():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        quiet_libraries()
        warnings.warn(
            "Image size (200000000 pixels) exceeds limit, could be decompression bomb DOS attack.", stacklevel=1
        )
        warnings.warn("Image size is odd", stacklevel=1)
    assert [str(each.message) for each in seen] == ["Image size is odd"]
