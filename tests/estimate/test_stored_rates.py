"""Rates of a user's own card: their place, their effect, and files that are refused.

Holds src/toprope/estimate/cost/stored.py.
"""

import pytest

from toprope import chips
from toprope.errors import SettingError, UsageError
from toprope.estimate.cost.costs import cost_of
from toprope.estimate.cost.rates import rates_of, shipped_rates
from toprope.estimate.cost.stored import StoredRates, forget, place, read, stored_for, write
from toprope.estimate.record.calls import OperatorCall, TensorShape
from toprope.settings import config_dir
from toprope.sim.tracing.records import Trace
from toprope.sim.tracing.timing import timing_of

CHIP = chips.get("910B3")
RATES = StoredRates(
    "910B3", "2026-11-30", "kernel_details.csv", {"products.attained": 0.43, "launch.queue": [1.5, 1.0, 0.5]},
    {"products.attained": 12},
)  # fmt: skip
MATMUL = cost_of(
    OperatorCall(
        "aten::mm", (*[TensorShape("float16", (4096, 4096))] * 2, TensorShape("float16", (4096, 4096), "result"))
    )
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_the_folder_of_settings(home, monkeypatch):
    assert config_dir() == home / "toprope"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(home))
    assert config_dir() == home / ".config" / "toprope"
    monkeypatch.setenv("HOME", "/")
    with pytest.raises(SettingError, match="no home folder"):
        config_dir()
    assert rates_of(CHIP).stored is None


def test_stored_rates_are_used_for_their_chip_and_say_so():
    before = rates_of(CHIP)
    assert (before.stored, "measured" in before.basis("matmul")) == (None, False)
    path = write(RATES)
    assert path == place("910B3")
    after = rates_of(CHIP)
    assert after.seconds(MATMUL).likely > 1.8 * before.seconds(MATMUL).likely
    assert after.launch(queue=2).likely == pytest.approx(0.5 * after.launch().likely)
    assert after.basis("matmul") == "measured on your card (kernel_details.csv, 2026-11-30)"
    assert "public measurements" in after.basis("elementwise")
    assert rates_of(chips.get("910B4")).stored is None
    assert shipped_rates(CHIP).seconds(MATMUL) == before.seconds(MATMUL)
    assert forget("910B3") == path
    assert forget("910B3") is None
    assert rates_of(CHIP).seconds(MATMUL) == before.seconds(MATMUL)


def test_a_file_says_the_same_when_it_is_read_again(tmp_path):
    path = write(RATES, tmp_path / "mine.toml")
    assert read(path, shipped_rates(CHIP).table) == RATES
    odd = StoredRates("910B3", "2026-11-30", 'a "b" \\ \n c', {"memory.attained": 0.123456789})
    again = read(write(odd, tmp_path / "odd.toml"), shipped_rates(CHIP).table)
    assert again.figures == {"memory.attained": pytest.approx(0.12346)}
    assert again.origin == 'a "b" \\ ? c'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no toml",
        'chip = "910B3"\ndate = "x"\norigin = "x"\n[figures]\n"products.nothing" = 1\n',
        'chip = "910B3"\ndate = "x"\norigin = "x"\n[figures]\n"nothing.attained" = 1\n',
        'chip = "910B3"\ndate = "x"\norigin = "x"\n[figures]\n"products.attained" = -1\n',
        'chip = "910B3"\ndate = "x"\norigin = "x"\n[figures]\n"products.attained" = "fast"\n',
        'chip = "910B3"\ndate = "x"\norigin = "x"\n[figures]\n"products.attained" = [1, 2]\n',
        'chip = "910B3"\ndate = "x"\norigin = "x"\nfigures = 3\n',
    ],
)
def test_a_broken_file_is_one_error_and_estimates_go_on_without_it_and_say_so(text):
    path = place("910B3")
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="holds no rates of a card"):
        read(path, shipped_rates(CHIP).table)
    stored, not_used = stored_for("910B3", shipped_rates(CHIP).table)
    assert stored is None
    assert str(path) in not_used
    assert "toprope calibrate --forget --chip 910B3" in not_used
    assert rates_of(CHIP).table == shipped_rates(CHIP).table
    assert not_used in timing_of(Trace(1, 0, 0, (), 0, "910B3")).basis


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "toprope").write_text("a file")
    with pytest.raises(UsageError, match="cannot be written"):
        write(RATES)


def test_a_file_with_the_rates_of_another_chip_is_not_used_and_named():
    write(RATES).rename(place("910B4"))
    found = rates_of(chips.get("910B4"))
    assert found.stored is None
    assert "has the rates of the 910B3" in found.not_used
