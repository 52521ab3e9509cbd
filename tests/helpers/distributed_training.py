"""Training of two processes, each on its own card, against one process with the joint batch.

As in distributed_values.py, both processes run every `case_...`.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from distributed_values import RANK, same

STEPS = 3


class Net(nn.Module):
    """Two layers and one that an even step does not use."""

    def __init__(self, *, fork: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)
        self.sometimes = nn.Linear(16, 4) if fork else None
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        if self.sometimes is not None and int(self.steps) % 2:
            return self.second(hidden) + self.sometimes(hidden)
        return self.second(hidden)


def network(**options: Any) -> Net:
    torch.manual_seed(7)
    return Net(**options).npu()


def joint_batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(6, 8, generator=generator).npu(), torch.randn(6, 4, generator=generator).npu()


def my_part(step: int) -> tuple[Tensor, Tensor]:
    x, y = joint_batch(step)
    return x.chunk(2)[RANK], y.chunk(2)[RANK]


def train(
    model: nn.Module, batch: Callable[[int], tuple[Tensor, Tensor]], steps: int = STEPS, kind: Any = torch.optim.AdamW
) -> nn.Module:
    optimizer = kind(model.parameters(), lr=0.05)
    for step in range(steps):
        for buffer in model.buffers():
            buffer.fill_(step)
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def alike(model: nn.Module, expected: nn.Module, tolerance: float = 1e-5) -> None:
    """Both processes have the expected weights."""
    wanted = dict(expected.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.device.type == "npu"
        torch.testing.assert_close(parameter.cpu(), wanted[name].cpu(), rtol=tolerance, atol=tolerance)
    assert wanted.keys() == dict(model.named_parameters()).keys()


def case_ddp() -> None:
    model = DistributedDataParallel(network())
    alike(train(model, my_part).module, train(network(), joint_batch))
    weight = model.module.first.weight
    total = weight.detach().clone()
    dist.broadcast(total, 1)
    same(weight.detach(), total.cpu())


def case_ddp_with_every_option() -> None:
    expected = train(network(), joint_batch)
    card = torch.npu.current_device()
    for options in (
        {"device_ids": [card], "output_device": card},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.0001},
        {"static_graph": True},
        {"find_unused_parameters": True, "broadcast_buffers": False},
    ):
        alike(train(DistributedDataParallel(network(), **options), my_part).module, expected)


def case_ddp_with_parameters_that_a_step_does_not_use() -> None:
    model = DistributedDataParallel(network(fork=True), find_unused_parameters=True)
    alike(train(model, my_part).module, train(network(fork=True), joint_batch))


def case_ddp_begins_with_the_weights_of_the_first_process() -> None:
    torch.manual_seed(RANK)
    model = DistributedDataParallel(Net().npu())
    torch.manual_seed(0)
    expected = Net().npu()
    alike(model.module, expected)


def case_ddp_without_synchronisation() -> None:
    model, expected = DistributedDataParallel(network()), network()
    with model.no_sync():
        nn.functional.mse_loss(*_both(model, my_part(0))).backward()
    nn.functional.mse_loss(*_both(model, my_part(1))).backward()
    for step in (0, 1):
        nn.functional.mse_loss(*_both(expected, joint_batch(step))).backward()
    for got, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(got.grad.cpu(), wanted.grad.cpu(), rtol=1e-5, atol=1e-6)


def _both(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return model(batch[0]), batch[1]


def case_ddp_communication_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    expected = train(network(), joint_batch, kind=torch.optim.SGD)
    for hook, tolerance in ((default_hooks.allreduce_hook, 1e-5), (default_hooks.fp16_compress_hook, 1e-2)):
        model = DistributedDataParallel(network())
        model.register_comm_hook(None, hook)
        alike(train(model, my_part, kind=torch.optim.SGD).module, expected, tolerance)
    with pytest.raises(TypeError, match="BF16 all reduce communication hook required CUDA"):  # torch's own rule
        DistributedDataParallel(network()).register_comm_hook(None, default_hooks.bf16_compress_hook)
    model = DistributedDataParallel(network())
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    train(model, my_part)


def case_ddp_with_unequal_numbers_of_batches() -> None:
    model = DistributedDataParallel(network())
    steps = 0
    with model.join():
        for step in range(2 + RANK):
            nn.functional.mse_loss(*_both(model, my_part(step))).backward()
            steps += 1
    assert steps == 2 + RANK


def case_ddp_under_autocast() -> None:
    model = DistributedDataParallel(network())
    with torch.autocast("npu", torch.bfloat16):
        loss = nn.functional.mse_loss(*_both(model, my_part(0)))
    loss.backward()
    expected = network()
    with torch.autocast("npu", torch.bfloat16):
        nn.functional.mse_loss(*_both(expected, joint_batch(0))).backward()
    for got, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(got.grad.cpu(), wanted.grad.cpu(), rtol=2e-2, atol=2e-2)


def case_synchronised_batch_norm() -> None:
    for shape in ((6, 4), (6, 4, 5), (6, 4, 3, 2)):
        for affine in (True, False):
            x = torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))
            alone = nn.BatchNorm1d(4, affine=affine) if len(shape) < 4 else nn.BatchNorm2d(4, affine=affine)
            shared = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone)).npu()
            for _ in range(2):
                whole, mine = x.clone().requires_grad_(), x.chunk(2)[RANK].npu().requires_grad_()
                expected, got = alone(whole), shared(mine)
                (expected * x).sum().backward()
                (got * mine.detach()).sum().backward()
            torch.testing.assert_close(got.cpu(), expected.chunk(2)[RANK], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(mine.grad.cpu(), whole.grad.chunk(2)[RANK], rtol=1e-4, atol=1e-4)
            for one, other in zip(shared.buffers(), alone.buffers(), strict=True):
                torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)
            for one, other in zip(shared.parameters(), alone.parameters(), strict=True):
                dist.all_reduce(one.grad)
                torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-4)
    half = nn.SyncBatchNorm(4).npu()
    with torch.autocast("npu", torch.float16):
        assert half(torch.randn(3, 4).half().npu()).dtype == torch.float16
    half.eval()
    half(torch.randn(3, 4).npu())


def case_fully_sharded() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("npu", (2,))
    model = network()
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh)
    train(model, my_part)
    expected = dict(train(network(), joint_batch).named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.to_local().shape[0] == parameter.shape[0] // 2
        torch.testing.assert_close(parameter.full_tensor().cpu(), expected[name].cpu(), rtol=1e-5, atol=1e-5)


def case_fully_sharded_with_a_divide_factor_of_its_own() -> None:
    from torch.distributed.fsdp import fully_shard

    model, expected = network(), network()
    fully_shard(model)
    model.set_gradient_divide_factor(4.0)
    nn.functional.mse_loss(*_both(model, my_part(0))).backward()
    nn.functional.mse_loss(*_both(expected, joint_batch(0))).backward()
    for got, wanted in zip(model.parameters(), expected.parameters(), strict=True):  # two processes: half of the mean
        torch.testing.assert_close(got.grad.full_tensor().cpu(), wanted.grad.cpu() / 2, rtol=1e-5, atol=1e-6)


def case_fully_sharded_with_a_gradient_scaler() -> None:
    """torch's scaler is for cuda unless a device is named; it warned, and scaled nothing."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    model, scaler = network(), ShardedGradScaler(init_scale=2.0**8, growth_interval=1)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = model.first.weight.full_tensor()
    for factor, scale in ((1.0, 512.0), (float("inf") if RANK else 1.0, 256.0)):
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(*_both(model, my_part(0))) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale
        assert not torch.equal(model.first.weight.full_tensor(), before)
    assert model.first.weight.full_tensor().isfinite().all()  # the step with inf in one process was left out by both


def case_fully_sharded_in_bfloat16() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = network()
    fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    x, y = my_part(0)
    loss = nn.functional.mse_loss(model(x), y.bfloat16())
    loss.backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
