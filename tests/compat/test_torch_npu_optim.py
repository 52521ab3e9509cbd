"""torch_npu.optim on the simulated card: each optimizer over ten steps against torch's, or against a formula.

Holds src/toprope/compat/torch_npu/optim.
"""

import pytest

from torch_npu_programs import outcomes

pytestmark = [pytest.mark.native, pytest.mark.process]

COMMON = """
import math
from torch_npu.optim import *
import torch_npu.optim as optim

def given(dtypes=(torch.float32, torch.float32, torch.float16)):
    generator = torch.Generator().manual_seed(5)
    shapes = ((3, 4), (5,), (2, 3))
    return [torch.randn(shape, generator=generator).to(dtype) for shape, dtype in zip(shapes, dtypes)]

def on_the_card(values):
    return [value.clone().npu().requires_grad_() for value in values]

def slope(values, step):
    return [(torch.sin(value.detach().float() * (step + 1)) / 3).to(value.dtype) for value in values]

def steps(optimizer, parameters, count=10):
    for step in range(count):
        for parameter, grad in zip(parameters, slope(parameters, step)):
            if parameter.grad is None:
                parameter.grad = grad
            else:
                parameter.grad.copy_(grad)
        optimizer.step()
    return [parameter.detach().cpu() for parameter in parameters]

def as_torch(kind, reference, **options):
    ours, theirs = on_the_card(given()), [value.float().requires_grad_() for value in given()]
    found = steps(kind(ours, **options), ours)
    expected = steps(reference(theirs, **options), theirs)
    for one, other in zip(found, expected):
        loose = one.dtype is torch.float16
        torch.testing.assert_close(one.float(), other, rtol=2e-2 if loose else 1e-4, atol=2e-2 if loose else 1e-5)

def by_formula(kind, formula, **options):
    values = given((torch.float32,) * 3)
    ours = on_the_card(values)
    found = steps(kind(ours, **options), ours)
    for value, one in zip(values, found):
        state = {}
        value = value.double()
        for step in range(10):
            value = formula(value, slope([value.float()], step)[0].double(), state, step + 1)
        torch.testing.assert_close(one.double(), value, rtol=1e-4, atol=1e-5)
"""

CASES = {
    "as torch": """
from torch import optim as torchs

for amsgrad in (False, True):
    options = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-3, "amsgrad": amsgrad}
    for decay in (0, 0.1):
        as_torch(NpuFusedAdamW, torchs.AdamW, **options, weight_decay=decay)
        as_torch(NpuFusedAdam, torchs.Adam, **options, weight_decay=decay)
for momentum, dampening, nesterov in ((0, 0, False), (0.9, 0, False), (0.9, 0.3, False), (0.9, 0, True)):
    for decay in (0, 0.1):
        options = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": decay}
        as_torch(NpuFusedSGD, torchs.SGD, lr=0.02, **options)
for decay in (0, 0.1):
    as_torch(NpuFusedAdadelta, torchs.Adadelta, lr=0.5, rho=0.8, eps=1e-3, weight_decay=decay)
    for momentum in (0, 0.9):
        for centered in (False, True):
            options = {"momentum": momentum, "centered": centered, "weight_decay": decay}
            as_torch(NpuFusedRMSprop, torchs.RMSprop, lr=0.01, alpha=0.9, eps=1e-2, **options)
""",
    "RMSprop as TensorFlow has it": """
for decoupled in (False, True):
    for momentum in (0.0, 0.9):
        for inside in (False, True):
            for centered in (False, True):
                def formula(p, g, state, step):
                    if decoupled:
                        p = p * (1 - 0.01)
                    else:
                        g = g + 0.01 * p
                    state["v"] = 0.9 * state.get("v", 1.0) + 0.1 * g * g
                    state["a"] = 0.9 * state.get("a", 0.0) + 0.1 * g
                    root = (state["v"] - (state["a"] ** 2 if centered else 0) + 1e-3).sqrt()
                    if not momentum:
                        return p - 0.02 * g / root
                    state["b"] = momentum * state.get("b", 0.0) + (0.02 if inside else 1.0) * g / root
                    return p - (1.0 if inside else 0.02) * state["b"]

                by_formula(NpuFusedRMSpropTF, formula, lr=0.02, alpha=0.9, eps=1e-3, weight_decay=0.01,
                           momentum=momentum, centered=centered, decoupled_decay=decoupled, lr_in_momentum=inside)
""",
    "Lamb": """
for adam in (False, True):
    def formula(p, g, state, step):
        state["m"] = 0.8 * state.get("m", 0.0) + 0.2 * g
        state["v"] = 0.9 * state.get("v", 0.0) + 0.1 * g * g
        change = state["m"] / (state["v"].sqrt() + 1e-3) + 0.1 * p
        ratio = 1.0 if adam else p.norm().clamp(max=10) / change.norm()
        return p - 0.02 * ratio * change

    by_formula(NpuFusedLamb, formula, lr=0.02, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1, adam=adam)
weights = on_the_card(given())
lamb = NpuFusedLamb(weights, use_global_grad_norm=True)
refused(AttributeError, "get_optimizer_combined_grads", steps, lamb, weights)
""",
    "AdamP": """
for nesterov in (False, True):
    def formula(p, g, state, step):
        state["m"] = 0.8 * state.get("m", 0.0) + 0.2 * g
        state["v"] = 0.9 * state.get("v", 0.0) + 0.1 * g * g
        change = (0.8 * state["m"] + 0.2 * g) if nesterov else state["m"]
        change = change / ((state["v"] / (1 - 0.9**step)).sqrt() + 1e-3)
        decay = 1.0
        for rows in ((p.shape[0], 1) if p.dim() > 1 else ()):
            flat, of = p.reshape(rows, -1), g.reshape(rows, -1)
            cosine = (flat * of).sum(1).abs() / (flat.norm(dim=1) * of.norm(dim=1))
            if cosine.max() < 0.9 / math.sqrt(flat.shape[1]):
                unit = flat / flat.norm(dim=1, keepdim=True)
                moved = change.reshape(rows, -1)
                change = (moved - unit * (unit * moved).sum(1, keepdim=True)).reshape(p.shape)
                decay = 0.5
                break
        return p * (1 - 0.02 * 0.1 * decay) - 0.02 / (1 - 0.8**step) * change

    by_formula(NpuFusedAdamP, formula, lr=0.02, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1, delta=0.9,
               wd_ratio=0.5, nesterov=nesterov)
""",
    "BertAdam": """
factors = {
    "warmup_linear": lambda x: max((x - 1) / (0.1 - 1), 0),
    "warmup_constant": lambda x: 1.0,
    "warmup_poly": lambda x: (1 - x) ** 0.5,
}
for schedule, factor in factors.items():
    def formula(p, g, state, step):
        state["m"] = 0.8 * state.get("m", 0.0) + 0.2 * g
        state["v"] = 0.9 * state.get("v", 0.0) + 0.1 * g * g
        x = (step - 1) / 20
        rate = 0.02 * (x / 0.1 if x < 0.1 else factor(x))
        return p - rate * (state["m"] / (state["v"].sqrt() + 1e-3) + 0.1 * p)

    by_formula(NpuFusedBertAdam, formula, lr=0.02, warmup=0.1, t_total=20, schedule=schedule, b1=0.8, b2=0.9, e=1e-3,
               weight_decay=0.1, max_grad_norm=-1)
weights = on_the_card(given())
refused(TypeError, "cos", steps, NpuFusedBertAdam(weights, lr=0.1, t_total=4, schedule="warmup_cosine"), weights)
weight = torch.tensor([3.0, 4.0], device="npu", requires_grad=True)
weight.grad = torch.tensor([30.0, 40.0], device="npu")
NpuFusedBertAdam([weight], lr=0.1, max_grad_norm=5.0).step()
torch.testing.assert_close(weight.grad.cpu(), torch.tensor([3.0, 4.0]))
""",
    "combined tensors": """
first, second, third, without = on_the_card([*given(), torch.ones(2)])
groups = [{"params": [first], "lr": 0.5}, {"params": [second, third, without]}]
optimizer = NpuFusedSGD(groups, lr=0.25)
assert optimizer.is_fused_optimizer and not optimizer.is_params_grads_combined
optimizer.zero_grad()
assert not optimizer.is_params_grads_combined and optimizer.get_combined_params() == [None, None]
for parameter in (first, second, third):
    parameter.grad = torch.ones_like(parameter)
before = [each.detach().clone() for each in (first, second, third)]
optimizer.step()
assert optimizer.is_params_grads_combined and optimizer.is_states_combined
floats, halves = optimizer.get_combined_params()
assert [floats.numel(), halves.numel()] == [17, 6] and halves.dtype is torch.float16
assert first.data_ptr() == floats.data_ptr() and second.data_ptr() == floats.data_ptr() + 12 * 4
assert first.grad.data_ptr() == optimizer.get_combined_grads()[0].data_ptr()
assert [[None if part is None else part.numel() for part in group]
        for group in optimizer.combined_params_indexed_by_group] == [[12, None], [5, 6]]
for now, then, rate in zip((first, second, third), before, (0.5, 0.25, 0.25)):
    torch.testing.assert_close(now.detach(), then - rate)
(first.sum() + 2 * second.sum()).backward()
assert first.grad.unique().tolist() == [2.0] and second.grad.unique().tolist() == [3.0]
optimizer.zero_grad()
assert all(not each.grad.any() for each in (first, second, third)) and without.grad is None
refused(ValueError, "set_to_none is not supported in fused optimizers", optimizer.zero_grad, True)
""",
    "clipping": """
for order in (2, 1, 3.0, math.inf):
    ours, theirs = on_the_card(given()), on_the_card(given())
    for one, other in zip(ours, theirs):
        one.grad, other.grad = one.detach().clone(), other.detach().clone()
    norm = NpuFusedAdamW(ours).clip_grad_norm_fused_(0.5, order)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.5, order)
    torch.testing.assert_close(norm, expected.float(), rtol=2e-3, atol=1e-3)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one.grad, other.grad, rtol=5e-3, atol=1e-3)
    kept = [each.grad.clone() for each in ours]
    NpuFusedSGD(ours, lr=0.1).clip_grad_norm_fused_(1e4)
    assert all(torch.equal(each.grad, then) for each, then in zip(ours, kept))
early = NpuFusedSGD(on_the_card(given()), lr=1)
refused(ValueError, "'is_params_grads_combined' must be True", early.clip_grad_norm_fused_, 1)
""",
    "states": """
import copy

weights, others = on_the_card(given()), on_the_card(given())
whole = NpuFusedAdamW(weights, lr=0.01, amsgrad=True)
steps(whole, weights, 3)
assert {*whole.state[weights[0]]} == {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
assert whole.state[weights[0]]["step"] == 3 and whole.state[weights[2]]["exp_avg"].dtype is torch.float16
saved = copy.deepcopy(whole.state_dict())
with torch.no_grad():
    for one, other in zip(others, weights):
        one.copy_(other)
loaded = NpuFusedAdamW(others, lr=0.5)
loaded.load_state_dict(saved)
for one, other in zip(steps(loaded, others, 2), steps(whole, weights, 2)):
    torch.testing.assert_close(one, other)
scheduler = torch.optim.lr_scheduler.StepLR(whole, 1, gamma=0.5)
whole.step()
scheduler.step()
assert whole.param_groups[0]["lr"] == 0.005
assert whole.step(lambda: 7) == 7
""",
    "refusals": """
def one():
    return [torch.ones(2, device="npu", requires_grad=True)]

for kind in (NpuFusedAdam, NpuFusedAdamW, NpuFusedLamb):
    refused(ValueError, "Invalid learning rate: -1", kind, one(), lr=-1)
    refused(ValueError, "Invalid epsilon value: -1", kind, one(), eps=-1)
    refused(ValueError, "Invalid beta parameter at index 1: 1.0", kind, one(), betas=(0.9, 1.0))
for kind in (NpuFusedRMSprop, NpuFusedRMSpropTF):
    for name in ("alpha", "momentum", "weight_decay"):
        refused(ValueError, f"Invalid {name} value: -1", kind, one(), **{name: -1})
refused(ValueError, "Invalid rho value: 1.5", NpuFusedAdadelta, one(), rho=1.5)
NpuFusedAdadelta(one(), rho=1.0)
refused(ValueError, "Nesterov momentum requires", NpuFusedSGD, one(), lr=1, nesterov=True)
refused(ValueError, "lr", NpuFusedSGD, one())
refused(ValueError, "Invalid schedule parameter: none", NpuFusedBertAdam, one(), lr=1, schedule="none")
refused(ValueError, "Invalid warmup: 1.0", NpuFusedBertAdam, one(), lr=1, warmup=1.0)
refused(ValueError, "Invalid b1 parameter: 1.0", NpuFusedBertAdam, one(), lr=1, b1=1.0)
weight = torch.ones(2, dtype=torch.bfloat16, device="npu", requires_grad=True)
weight.grad = torch.ones_like(weight)
refused(TypeError, "must be either float32 or float16, but received torch.bfloat16", NpuFusedAdam([weight]).step)
weight = torch.ones(2, requires_grad=True)
weight.grad = torch.ones(2)
refused(RuntimeError, "must be on NPU", NpuFusedAdam([weight]).step)
refused(NotImplementedError, "feature not supported", NpuFusedOptimizerBase(one(), {})._group_step, 0)
refused(AttributeError, "torch_npu.optim", lambda: optim.NpuFusedLion)
""",
    "values that are left out are torch_npu's": """
weight = [torch.ones(2, device="npu", requires_grad=True)]
adam = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, amsgrad=False)
assert NpuFusedAdamW(weight).defaults == {**adam, "weight_decay": 1e-2}
assert NpuFusedAdam(weight).defaults == {**adam, "weight_decay": 0}
""",
}


@pytest.fixture(scope="module")
def found():
    return outcomes({name: COMMON + code for name, code in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_on_the_card(found, name):
    assert not found[name], found[name]
