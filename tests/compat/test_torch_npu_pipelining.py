"""torch_npu.distributed.pipelining: a traced pipeline computes what torch's exported one does.

Holds src/toprope/compat/torch_npu/distributed/pipelining.
"""

import pytest

from cuda_programs import run_ranks
from torch_npu_programs import HEAD, outcomes

pytestmark = [pytest.mark.native, pytest.mark.process]

MODEL = """
from torch.distributed.pipelining import Schedule1F1B, SplitPoint
from torch_npu.distributed.pipelining import pipeline

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8))
        self.scale = torch.nn.Parameter(torch.full((8,), 2.0))
        self.register_buffer("shift", torch.full((8,), 0.5))

    def forward(self, x, mask=None):
        assert mask is None
        return x + torch.relu(self.layers(x)) * self.scale + self.shift

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.last = torch.nn.Linear(8, 8)

    def forward(self, x, mask=None, factor=2):
        for block in self.blocks:
            x = block(x, mask)
        return self.last(x) * factor
"""

STAGES = (
    MODEL
    + """
import os
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.npu.set_device(rank)
dist.init_process_group("hccl")
results = []
for options in ({}, {"mode": "fx"}, {"mode": "fx", "atomic_units": ["blocks.0", "blocks.1"]}):
    torch.manual_seed(0)
    model = Model().npu()
    x, target = torch.randn(8, 8, device="npu"), torch.randn(8, 8, device="npu")
    arguments = (x[:2], None) if "mode" in options else (x[:2],)
    pipe = pipeline(model, arguments, split_spec={"blocks.1": SplitPoint.BEGINNING}, **options)
    assert pipe.num_stages == 2
    stage = pipe.build_stage(rank, torch.device("npu", rank))
    schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.MSELoss(reduction="sum"), scale_grads=False)
    result = schedule.step(*[] if rank else [x], target=target, losses=[])
    gradients = [each.grad.norm().item() for each in pipe.get_stage_module(rank).parameters()]
    assert len(gradients) == 5 + 2 * rank  # a stage has its own parameters
    results.append((None if result is None else result.tolist(), sorted(gradients)))
assert (results[0][0] is None) == (rank == 0)
assert results[0] == results[1] == results[2], results
dist.destroy_process_group()
print("done")
"""
)

ERRORS = (
    MODEL
    + """
model, x = Model(), torch.ones(2, 8)
split = {"blocks.1": SplitPoint.END}
assert pipeline(model, (x,), split_spec=split, mode="fx").num_stages == 2
refused(ValueError, "Cannot specify both", pipeline, model, (x,), split_spec=split, split_policy=lambda traced: traced)
refused(ValueError, "only supported when `mode='fx'`", pipeline, model, (x,), atomic_units=["last"])
refused(ValueError, "one of None, 'export', or 'fx'", pipeline, model, (x,), mode="jit")
refused(ValueError, "do not exist in the model: first", pipeline, model, (x,), mode="fx", atomic_units=["first"])
refused(ValueError, "did not match any FX call_module node", pipeline, model, (x,), split_spec={"no": 1}, mode="fx")
refused(ValueError, "Unsupported split point", pipeline, model, (x,), split_spec={"last": 1}, mode="fx")
refused(ValueError, "Failed to bind", pipeline, model, (x, 1, 2, 3), mode="fx")
"""
)


def test_a_traced_pipeline_computes_what_an_exported_one_does() -> None:
    assert [printed.strip()[-4:] for printed in run_ranks(STAGES, head=HEAD)] == ["done", "done"]


def test_refused_arguments() -> None:
    assert outcomes({"errors": ERRORS}) == {"errors": ""}
