"""`--numerics card`: the first bad numbers by line, and the deviation of modules from float32.

Holds sim/rehearsal/module_numbers.py and csrc/torch/numbers.cpp against float32 on the host.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import jsonschema
import pytest
import torch
from torch import nn

import toprope.sim
from toprope.sim.rehearsal.facts import schema

SIM = "910B3,hbm=1GiB,numerics=card"


def line_of(text):
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if line.strip() == text)


def test_the_first_nan_and_the_first_overflow_have_their_lines():
    x = torch.full((8,), 60000.0, device="npu", dtype=torch.float16)
    with toprope.sim.rehearse() as r:
        large = x * 2
        large - large
        large * 0
    (overflow, place), (nan, where) = (r.facts.bad_numbers[kind] for kind in ("overflow", "nan"))
    assert (overflow, place.line) == ("aten::mul", line_of("large = x * 2"))
    assert (nan, where.line) == ("aten::sub", line_of("large - large"))
    assert place.file.endswith("test_numbers.py")
    jsonschema.validate({"format": 1, "exit_status": 0, "seconds": 1.0, "cards": [r.facts.as_dict()],
                         "cores": None, "notes": []}, schema())  # fmt: skip


def test_a_cast_that_overflows_and_a_division_in_place():
    x = torch.full((4,), 1e6, device="npu")
    zero = torch.zeros(4, device="npu")
    with toprope.sim.rehearse() as r:
        x.half()
        zero.div_(zero)
    assert r.facts.bad_numbers["overflow"][0] == "aten::copy_"
    assert r.facts.bad_numbers["nan"][0] == "aten::div_"


def test_a_mask_of_infinities_is_no_overflow():
    scores = torch.zeros(4, 4, device="npu")
    mask = torch.ones(4, 4, device="npu", dtype=torch.bool).triu(1)
    with toprope.sim.rehearse() as r:
        scores.masked_fill(mask, float("-inf")).softmax(-1)
        torch.full((4,), float("inf"), device="npu")
    assert r.facts.bad_numbers == {}


def test_what_was_bad_before_is_not_found_again():
    bad = torch.full((4,), float("nan"), device="npu")
    with toprope.sim.rehearse() as r:
        bad + 1
    assert r.facts.bad_numbers == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_modules_deviate_by_what_their_dtype_rounds(dtype):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Sequential(nn.LayerNorm(64))).to("npu", dtype)
    x = torch.randn(8, 64).to("npu", dtype)
    with toprope.sim.rehearse() as r:
        model(x)
        model(x)
    found = {one.module: one for one in r.facts.deviations}
    assert set(found) == {"0", "2.0"}  # those with parameters and nothing inside, once
    assert (found["0"].kind, found["0"].dtype) == ("Linear", str(dtype).removeprefix("torch."))
    most = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6}[dtype]
    assert all(one.largest < most for one in found.values())
    if dtype is not torch.float32:
        assert found["0"].largest > most / 100


def test_looking_at_numbers_counts_nothing():
    model = nn.Linear(64, 64).to("npu")
    x = torch.ones(8, 64, device="npu")
    with toprope.sim.rehearse() as r:
        model(x)
    assert (r.facts.totals.operator_calls, r.syncs) == (1, 0)
    assert r.facts.totals.copies["from_card"] == (0, 0)


def test_a_convolution_in_hf32_deviates_from_float32():
    torch.manual_seed(1)
    layer = nn.Conv2d(16, 16, 3).to("npu")
    x = torch.randn(2, 16, 8, 8).to("npu")
    with toprope.sim.rehearse() as r:
        layer(x)
    (one,) = r.facts.deviations
    assert 1e-6 < one.largest < 1e-2  # 11 bits of the mantissa, torch_npu's default for convolutions


def test_a_nan_that_the_data_bring_is_found_at_its_copy():
    x = torch.tensor([1.0, float("nan")])
    with toprope.sim.rehearse() as r:
        x.to("npu") + 1
    assert r.facts.bad_numbers["nan"][0] == "aten::copy_ to the card"


class Bad(nn.Module):
    """Makes a NaN itself, or leaves it to its parent."""

    def __init__(self, *, itself=True):
        super().__init__()
        self.inner, self.itself = nn.Linear(4, 4), itself

    def forward(self, x):
        made = self.inner(x).abs().neg().sub(1)
        return made.sqrt() if self.itself else made


class Around(nn.Module):
    """Makes a NaN between two modules."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Bad(itself=False), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x).sqrt())


def test_the_module_of_a_bad_number_is_named():
    cases = [
        (nn.Sequential(nn.Linear(4, 4), Bad(), nn.Linear(4, 4)), "1 (Bad)"),
        (nn.Sequential(nn.Linear(4, 4), Around()), "1 (Around)"),
        (Bad(), "the outermost module (Bad)"),
    ]
    for model, said in cases:
        model.to("npu")
        with toprope.sim.rehearse() as r:
            model(torch.ones(2, 4, device="npu"))
        assert r.facts.module_of("nan") == said
        assert r.facts.as_dict()["first_bad_numbers"]["nan"]["module"] == said
        assert not any(each.largest != each.largest for each in r.facts.deviations)


def test_a_bad_number_outside_of_modules_is_no_modules():
    model = nn.Linear(4, 4, device="npu")
    with toprope.sim.rehearse() as r:
        x = torch.full((2, 4), -1.0, device="npu").sqrt()
        model(x)
    assert r.facts.bad_numbers["nan"][0] == "aten::sqrt"
    assert r.facts.module_of("nan") == ""


def test_a_module_that_failed_is_not_blamed_for_a_later_number():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            self.inner(x)
            raise RuntimeError("on purpose")

    fails, model = Fails().to("npu"), nn.Sequential(Bad()).to("npu")
    with toprope.sim.rehearse() as r:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="on purpose"):
                fails(torch.ones(2, 4, device="npu"))
        model(torch.ones(2, 4, device="npu"))
    assert r.facts.module_of("nan") == "0 (Bad)"
