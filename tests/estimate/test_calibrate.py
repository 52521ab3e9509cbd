"""Rates fitted to a profile: known constants come back, and a figure that the rows do not determine stays.

Holds src/toprope/estimate/measured/calibrate.py and fitting.py; the profiles are written from known rates
(tests/helpers/synthetic_profiles.py).
"""

from copy import deepcopy
from dataclasses import replace

import pytest

from synthetic_profiles import rows
from toprope import chips
from toprope.estimate.cost.rates import Rates, shipped_rates
from toprope.estimate.measured.calibrate import calibrate, launches_of, samples_of
from toprope.estimate.measured.profiler_files import KernelRow

CHANGED = {
    "products.attained": 0.72, "products.attained_float32": 0.8, "products.start": 4.4, "products.start_float32": 7.0,
    "products.wave": 0.8, "convolution.attained": 0.6, "attention.attained": 0.4, "attention.softmax": 2.6,
    "attention.start": 30.0, "memory.attained": 0.55, "memory.l2_bytes": 100.0, "start.kernel": 3.3,
    "start.small": 1.9, "start.softmax": 5.0, "start.normalisation": 6.0, "vector.gelu": 2.2, "vector.silu": 3.5,
    "vector.softmax": 1.7, "vector.native_layer_norm": 0.9, "launch.host": 31.0, "launch.matmul": 40.0,
    "launch.softmax": 36.0, "launch.normalisation": 29.0, "launch.attention": 80.0,
}  # fmt: skip


def changed(chip, figures):
    base = shipped_rates(chips.get(chip))
    table = deepcopy(base.table)
    for name, value in figures.items():
        section, _, key = name.partition(".")
        table[section][key] = value
    return Rates(base.chip, table)


def fitted(chip, kernels):
    return calibrate(samples_of(kernels), shipped_rates(chips.get(chip)), launches_of(kernels))


@pytest.mark.parametrize(
    ("chip", "noise", "outliers", "repeats"),
    [("910B3", 0.0, 0.0, 20), ("910B4", 0.0, 0.0, 20), ("910B3", 0.03, 0.02, 40)],
)
def test_known_constants_come_back_within_two_percent(chip, noise, outliers, repeats):
    true = changed(chip, CHANGED)
    made = fitted(chip, list(rows(true, repeats=repeats, noise=noise, outliers=outliers)))
    found = {each.name: each for each in made.figures}
    assert {name: found[name].after for name in CHANGED} == pytest.approx(CHANGED, rel=0.02)
    assert all(found[name].fitted and found[name].rows >= 5 for name in CHANGED)
    assert made.error_before > 0.2
    assert made.error_after < (0.001 if not noise else 0.01)
    # the same again: nothing is left to fit
    again = calibrate(samples_of(rows(true, repeats=3)), Rates(true.chip, made.table))
    assert again.error_before < 0.02


def test_what_the_rows_do_not_say_keeps_its_value():
    true = changed("910B3", CHANGED)
    kernels = [row for row in rows(true) if row.kind == "Gelu"]
    made = fitted("910B3", kernels)
    figures = {each.name: each for each in made.figures}
    assert figures["vector.gelu"].fitted
    assert not any(name.startswith(("products", "convolution", "attention")) for name in figures)
    shipped = shipped_rates(chips.get("910B3"))
    assert made.table["products"] == shipped.table["products"]
    assert made.table["vector"]["silu"] == shipped.table["vector"]["silu"]


def test_four_rows_are_too_few():
    true = changed("910B3", CHANGED)
    few = [row for row in rows(true, repeats=1) if row.kind == "Conv2D"][:4]
    made = fitted("910B3", few)
    figure = next(each for each in made.figures if each.name == "convolution.attained")
    assert (figure.fitted, figure.why) == (False, "too few measurements say something of it")
    assert figure.after == figure.before
    assert made.fitted == {}


def test_times_above_the_peak_are_not_believed():
    true = changed("910B3", {"convolution.attained": 2.5})
    made = fitted("910B3", [row for row in rows(true) if row.kind == "Conv2D"])
    figure = next(each for each in made.figures if each.name == "convolution.attained")
    assert not figure.fitted
    assert figure.why == "the measurements ask for more than the peak of the chip"


def test_an_operator_that_is_slow_gets_a_rate_of_its_own():
    true = changed("910B3", {"vector.relu": 1.1})
    made = fitted("910B3", list(rows(true)))
    assert made.fitted["vector.relu"] == pytest.approx(1.1, rel=0.02)


def test_a_range_that_is_too_narrow_is_widened_and_never_shrinks():
    true = changed("910B3", CHANGED)
    noisy = [row for row in rows(true, repeats=1, noise=0.8) if row.kind in ("Add", "Relu", "Cast", "Mul")]
    made = fitted("910B3", noisy)
    assert made.table["memory"]["width"] > shipped_rates(chips.get("910B3")).table["memory"]["width"]
    exact = fitted("910B3", list(rows(true, repeats=2)))
    assert exact.table["memory"]["width"] == shipped_rates(chips.get("910B3")).table["memory"]["width"]


def test_types_say_what_was_not_compared():
    true = changed("910B3", {})
    kernels = list(rows(true, repeats=1))
    kernels += [
        replace(kernels[0], kind="SomethingNew"),
        replace(kernels[1], core="AI_CPU"),
        replace(kernels[2], inputs=("", ""), outputs=("", "")),
    ]
    made = fitted("910B3", kernels)
    unknown = {each.name: each.unknown for each in made.types if each.unknown}
    assert unknown["SomethingNew"] == "no rule for this type"
    assert "not on the cores" in unknown.values()
    assert "no shapes" in unknown.values()
    compared = [each for each in made.types if not each.unknown]
    assert sum(each.count for each in made.types) == len(kernels)
    assert all(each.measured == pytest.approx(each.before, rel=0.01) for each in compared)


def test_several_kernels_of_one_call_are_launched_once():
    kernels, at = [], 0
    for _ in range(40):
        for kind in ("DSARandomNormal", "Cast"):
            sizes = ("1,4096", "FLOAT")
            kernels.append(KernelRow(f"aclnnInplaceNormal_{kind}", kind, "AI_VECTOR_CORE", "0", at, 2.0, sizes, sizes))
            at += 10_000
        at += 40_000
    found = launches_of(kernels)
    assert found.rows == {"host": 38}
    assert found.seconds["host"] == pytest.approx(60e-6)


def test_no_time_no_launch():
    assert launches_of([]).seconds == {}
    made = calibrate([], shipped_rates(chips.get("910B3")))
    assert (made.figures, made.types, made.error_after) == ((), (), 0.0)


def test_a_chip_without_figures_predicts_nothing():
    unknown = next(each for each in map(chips.get, chips.names()) if each.memory_gb_per_s is None)
    true = changed("910B3", {})
    made = calibrate(samples_of(rows(true, repeats=1)), shipped_rates(unknown))
    assert made.fitted == {}
    assert all(each.unknown for each in made.types)
