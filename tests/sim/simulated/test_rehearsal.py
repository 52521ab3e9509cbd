"""A rehearsal inside the process: memory by kind and line, lines that wait in every step, refusals with their lines.

Holds sim/rehearsal and csrc/core/rehearsal.h against memory computed by hand. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import inspect
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import toprope.sim
from toprope.errors import SimulatorError
from toprope.sim.rehearsal.record_file import KINDS
from toprope.sim.rehearsal.recorder import to_come

SIM = "910B3"

MIB = 2**20
GIB = 2**30


def block(*shape: int, size: int = 4) -> int:
    """Bytes of the allocator's block of a tensor: 32 more than asked for, in steps of 512."""
    return (torch.Size(shape).numel() * size + 32 + 511) // 512 * 512


def here(offset: int = 0) -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno + offset


def of_memory(facts):
    (one,) = facts.memory
    return one


def lines(memory):
    return {held.line.line: dict(held.bytes) for held in memory.lines if held.line.file == __file__}


def test_kinds_and_lines_of_a_training_step_computed_by_hand():
    """y = x W and SGD with momentum: what each line holds at the peak, to the byte."""
    torch.npu.empty_cache()
    with toprope.sim.rehearse() as rehearsal:
        model = nn.Linear(256, 512, bias=False, device="npu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        made = here(-2)
        for _ in range(3):
            x = torch.ones(64, 256).to("npu")
            y = model(x)
            y.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        forward, copied, loss, stepped = here(-4), here(-5), here(-3), here(-2)
    memory = of_memory(rehearsal.facts)
    weights, outputs, inputs, scalar = block(512, 256), block(64, 512), block(64, 256), block(1)
    # the peak is in the second backward pass, where the gradient is made from y's own gradient
    assert memory.kinds == {
        "weights": weights,
        "gradients": weights,
        "optimizer": weights,
        "activations": outputs + 2 * scalar,
        "others": inputs + outputs,
    }
    assert memory.peak == sum(memory.kinds.values())
    held = lines(memory)
    assert held[made] == {"weights": weights}
    assert held[forward] == {"activations": outputs}
    assert held[loss] == {"activations": 2 * scalar}
    assert held[copied] == {"others": inputs}
    assert held[stepped] == {"optimizer": weights}
    assert rehearsal.facts.steps == {"training": 3, "inference": 0, "forward": 3}


def test_the_peak_of_a_block_is_exact_and_begins_with_what_is_in_use():
    torch.npu.empty_cache()
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="npu")
    before = torch.npu.memory_allocated()
    with toprope.sim.rehearse() as rehearsal:
        first = torch.empty(8 * MIB, dtype=torch.uint8, device="npu")
        del first
        second = torch.empty(5 * MIB, dtype=torch.uint8, device="npu")
    memory = of_memory(rehearsal.facts)
    assert memory.peak == before + 8 * MIB + 512
    assert sum(memory.kinds.values()) == memory.peak
    assert {held.line.group for held in memory.lines} >= {"before the rehearsal began"}
    del kept, second


def test_untouched_memory_fits_or_is_refused_as_on_the_card():
    torch.npu.empty_cache()
    with toprope.sim.rehearse() as rehearsal:
        large = torch.empty(int(60.0 * GIB), dtype=torch.uint8, device="npu")
    assert of_memory(rehearsal.facts).fit == "fits"
    assert not rehearsal.facts.findings
    del large
    torch.npu.empty_cache()
    with toprope.sim.rehearse() as rehearsal, pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(int(61.2 * GIB), dtype=torch.uint8, device="npu")
    assert str(caught.value).startswith(
        "NPU out of memory. Tried to allocate 61.20 GiB (NPU 0; 60.96 GiB total capacity;"
    )
    memory = of_memory(rehearsal.facts)
    assert memory.fit == "does not fit"
    assert memory.shortage is not None
    assert memory.shortage.wanted == int(61.2 * GIB)
    (finding,) = rehearsal.facts.findings
    assert (finding.kind, finding.file, finding.line) == ("memory", __file__, here(-9))


def test_a_shortage_names_kinds_that_no_forward_pass_has_shown():
    """Modules and optimizers are looked for when an allocation fails: a model that is too large never runs."""
    with toprope.sim.rehearse() as rehearsal:
        model = nn.Linear(1024, 1024, bias=False, device="npu")
        model.weight.grad = torch.zeros_like(model.weight)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(70 * GIB, dtype=torch.uint8, device="npu")
    shortage = of_memory(rehearsal.facts).shortage
    assert shortage is not None
    assert shortage.kinds["weights"] == shortage.kinds["gradients"] == block(1024, 1024)


def test_what_an_optimizer_has_still_to_make_was_not_counted():
    with toprope.sim.rehearse() as rehearsal:
        model = nn.Module()
        model.weight = nn.Parameter(torch.empty(20 * GIB // 4, device="npu"))
        optimizer = torch.optim.AdamW(model.parameters())
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(45 * GIB, dtype=torch.uint8, device="npu")
    (first, *others) = of_memory(rehearsal.facts).shortage.advice
    assert first.startswith(
        "no batch is small enough: weights 20.0 GiB, gradients 20.0 GiB and optimizer states 40.0 GiB do not"
    )
    assert "60.0 GiB of it still to come" in first
    assert not any("a batch of" in each for each in others)
    assert optimizer.state == {}


def test_gradients_and_states_to_come_by_optimizer():
    model = nn.Linear(64, 64, bias=False, device="npu")
    size = 64 * 64 * 4
    (weight,) = model.parameters()

    class Own(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    class Derived(torch.optim.Adam):
        pass

    for make, copies in (
        (torch.optim.AdamW, 2), (Derived, 2), (lambda params: torch.optim.Adam(params, amsgrad=True), 3),
        (torch.optim.SGD, 0), (lambda params: torch.optim.SGD(params, momentum=0.9), 1), (Own, 0),
        (lambda params: torch.optim.RMSprop(params, momentum=0.9, centered=True), 3), (torch.optim.Rprop, 2),
        (torch.optim.Adagrad, 0),  # makes its states when it is made
    ):  # fmt: skip
        assert to_come([make([weight])]) == {0: (size, copies * size)}
    trained = torch.optim.AdamW([weight])
    weight.grad = torch.zeros_like(weight)
    trained.step()
    assert to_come([trained]) == {0: (0, 0)}
    assert sum(state.nbytes for state in trained.state[weight].values() if state.dim()) == 2 * size
    trained.zero_grad()
    assert to_come([trained, trained]) == {0: (size, 0)}
    assert to_come([torch.optim.AdamW(nn.Linear(4, 4).parameters())]) == {}
    assert to_come([torch.optim.AdamW([torch.ones(4, device="npu")])]) == {}


def test_recomputed_activations_are_activations_and_forward_temporaries_without_gradients_are_not():
    layer = nn.Linear(256, 256, device="npu")
    x = torch.ones(1024, 256, device="npu", requires_grad=True)
    with toprope.sim.rehearse() as rehearsal:
        y = checkpoint(layer, x, use_reentrant=False)
        y.sum().backward()
    assert of_memory(rehearsal.facts).kinds["activations"] >= block(1024, 256)
    del y
    with toprope.sim.rehearse() as rehearsal, torch.no_grad():
        kept = layer(x)
    assert "activations" not in of_memory(rehearsal.facts).kinds
    del kept


def test_a_line_that_waits_in_every_step_is_in_a_loop_and_once_per_epoch_is_not():
    model = nn.Linear(8, 8, device="npu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 8, device="npu")
    with toprope.sim.rehearse() as rehearsal:
        for _ in range(3):
            total = torch.zeros((), device="npu")
            for _ in range(5):
                optimizer.zero_grad()
                loss = model(x).sum()
                loss.backward()
                optimizer.step()
                total += loss.detach()
                loss.item()
            total.item()
    every = here(-2)
    waits = {one.line: one for one in rehearsal.facts.waits}
    assert (waits[every].in_loop, waits[every].steps) == (True, "15 of 15 training steps")
    assert (waits[every + 1].in_loop, waits[every + 1].waits) == (False, 3)
    assert [(one.kind, one.line) for one in rehearsal.facts.findings] == [("sync-in-loop", every)]
    assert rehearsal.syncs == 18


def test_inference_has_steps_of_its_own():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to("npu")
    with toprope.sim.rehearse() as rehearsal, torch.no_grad():
        for _ in range(4):
            model(torch.ones(4, 8, device="npu")).argmax().item()
    assert rehearsal.facts.steps == {"training": 0, "inference": 4, "forward": 0}
    assert [(one.kind, one.line) for one in rehearsal.facts.findings] == [("sync-in-loop", here(-2))]


def test_the_gradient_scalers_own_waits_are_no_finding():
    model = nn.Linear(8, 8, device="npu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("npu")
    with toprope.sim.rehearse() as rehearsal:
        for _ in range(4):
            scaler.scale(model(torch.ones(4, 8, device="npu")).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert not rehearsal.facts.findings
    assert [one.operation for one in rehearsal.facts.waits] == ["the gradient scaler's look for overflows"]


def test_a_refusal_has_its_line_though_the_program_caught_it():
    with toprope.sim.rehearse() as rehearsal:
        with pytest.raises(RuntimeError, match="161002"):
            torch.bincount(torch.ones(4, dtype=torch.float16, device="npu"))
        refused = here(-1)
    (finding,) = rehearsal.facts.findings
    assert (finding.kind, finding.file, finding.line) == ("refused", __file__, refused)
    assert rehearsal.verdict == "will be refused (1 operator)"


def test_memory_of_other_threads_is_counted():
    kept = []

    def allocate():
        kept.append(torch.empty(4 * MIB, dtype=torch.uint8, device="npu"))

    with toprope.sim.rehearse() as rehearsal:
        threads = [threading.Thread(target=allocate) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert lines(of_memory(rehearsal.facts))[allocate.__code__.co_firstlineno + 1]["others"] == 4 * (4 * MIB + 512)


def test_over_time_ends_with_what_is_in_use():
    with toprope.sim.rehearse() as rehearsal:
        kept = [torch.empty(MIB, dtype=torch.uint8, device="npu") for _ in range(50)]
    memory = of_memory(rehearsal.facts)
    seconds = [one.seconds for one in memory.samples]
    assert seconds == sorted(seconds)
    assert max(sum(one.bytes.values()) for one in memory.samples) == memory.peak
    assert set(memory.samples[-1].bytes) == set(KINDS)
    del kept


def test_hooks_are_gone_when_no_rehearsal_needs_them():
    from torch.nn.modules import module
    from torch.optim import optimizer

    model = nn.Linear(8, 8, device="npu")
    with toprope.sim.rehearse():
        model(torch.ones(2, 8, device="npu")).sum().backward()
        assert model.weight._post_accumulate_grad_hooks
    assert not module._global_forward_pre_hooks
    assert not optimizer._global_optimizer_pre_hooks
    assert not model.weight._post_accumulate_grad_hooks


def test_torch_compile_neither_warns_of_the_hooks_nor_breaks_its_graph():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to("npu")
    with toprope.sim.rehearse() as rehearsal:
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")  # a warning is an error here
        for _ in range(3):
            compiled(torch.ones(4, 8, device="npu")).sum().backward()
    assert rehearsal.facts.steps["forward"] == 3


def test_two_rehearsals_at_a_time_are_an_error():
    with toprope.sim.rehearse() as first:
        with pytest.raises(SimulatorError, match="another rehearsal"), toprope.sim.rehearse():
            pass
        with pytest.raises(SimulatorError, match="still being recorded"):
            first.facts  # noqa: B018
    assert first.verdict == "runs on the card"


def test_a_module_without_its_parameters_yet_could_not_be_called():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU()).npu()
    with toprope.sim.rehearse() as rehearsal:
        model(torch.ones(2, 3, device="npu")).sum().backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.step()
    assert rehearsal.facts.steps["training"] == 1


def test_a_module_that_compares_in_its_own_way_could_not_be_called():
    class Layer(nn.Linear):
        def __eq__(self, other):
            return self.weight == other.weight

        __hash__ = None

    layer = Layer(3, 3).npu()
    with toprope.sim.rehearse() as rehearsal, torch.no_grad():
        for _ in range(3):
            layer(torch.ones(2, 3, device="npu"))
    assert rehearsal.facts.totals.operators["aten::addmm"] == 3  # its steps are not known


def test_a_block_named_operators_that_were_on_the_host_before_it():
    x = torch.arange(3.0, device="npu") + 1
    torch.lgamma(x)
    with toprope.sim.rehearse() as rehearsal:
        torch.digamma(x)
    assert [(one.text.split()[0], one.line, one.times) for one in rehearsal.facts.of("host")] == [
        ("aten::digamma.out", here(-2), 1)
    ]
    found = rehearsal.facts.as_dict()
    assert [one["bytes_to_host"] for one in found["on_host"]] == [24]  # x, and the out= of the same size
    assert found["torch_npu"].startswith("torch_npu 2.13")


def test_an_operator_whose_kernel_may_compute_on_the_host_was_not_named():
    with toprope.sim.rehearse() as rehearsal:
        torch.std(torch.ones(3, device="npu"))
    assert rehearsal.facts.findings == ()
    (one,) = rehearsal.facts.as_dict()["perhaps_on_host"]
    assert one["operator"] == "aten::std"
    assert "for some arguments" in one["why"]


def test_an_operator_that_neither_a_card_nor_the_cpu_has_was_no_finding():
    q = torch.ones(1, 1, 4, 8, device="npu", dtype=torch.float16)
    with toprope.sim.rehearse() as rehearsal:
        with pytest.raises(NotImplementedError):
            torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, True)
        line = here(-1)
    (one,) = rehearsal.facts.of("refused")
    assert "neither a card nor the CPU" in one.text
    assert (one.file, one.line) == (__file__, line)


def test_the_gradient_scaler_of_torch_npu_was_a_wait_in_a_loop():
    model = nn.Linear(4, 4, device="npu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.npu.amp.GradScaler()
    with toprope.sim.rehearse() as rehearsal:
        x = torch.ones(2, 4, device="npu")
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(model(x).sum()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert rehearsal.facts.steps["training"] == 4
    assert rehearsal.facts.of("sync-in-loop") == ()
    assert any("scaler" in each.operation for each in rehearsal.facts.waits)


def test_weights_outside_modules_that_were_called_were_others():
    weight = nn.Parameter(torch.ones(1024, 1024, device="npu"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with toprope.sim.rehearse() as rehearsal:
        for _ in range(2):
            weight.sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    assert of_memory(rehearsal.facts).kinds.get("weights", 0) >= block(1024, 1024)
