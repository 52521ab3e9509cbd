"""torch's own libraries on top of torch.distributed, two processes with a card each; as in distributed_values.py."""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from distributed_training import STEPS, alike, joint_batch, my_part, network, train
from distributed_values import RANK, same


def expected_weights() -> dict[str, torch.Tensor]:
    return dict(train(network(), joint_batch).named_parameters())


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), expected.cpu(), rtol=1e-5, atol=1e-5)


def case_sharded_tensors() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("npu", (2,))
    tensor = torch.arange(32.0).reshape(8, 4).npu()
    rows = distribute_tensor(tensor, mesh, [Shard(0)])
    assert rows.to_local().shape == (4, 4)
    columns = rows.redistribute(mesh, [Shard(1)])
    same(columns.to_local(), tensor.cpu().chunk(2, 1)[RANK])
    same(columns.full_tensor(), tensor.cpu())
    same(rows.sum().full_tensor(), tensor.cpu().sum())
    product = rows @ distribute_tensor(tensor.t().contiguous(), mesh, [Replicate()])
    same(product.full_tensor(), (tensor.cpu() @ tensor.cpu().t()))


def case_tensor_parallel() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("npu", (2,))
    model, alone = network(), network()
    parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    x, _ = joint_batch(0)
    close(model(x), alone(x))
    model(x).square().sum().backward()
    alone(x).square().sum().backward()
    close(model.first.weight.grad.full_tensor(), alone.first.weight.grad)
    close(model.second.weight.grad.full_tensor(), alone.second.weight.grad)


def case_fully_sharded_over_a_mesh_and_on_the_host() -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    expected = expected_weights()
    mesh = init_device_mesh("npu", (1, 2), mesh_dim_names=("copies", "parts"))
    for options in ({"mesh": mesh}, {"offload_policy": CPUOffloadPolicy()}):
        model = network()
        fully_shard(model, **options)
        train(model, my_part)
        for name, parameter in model.named_parameters():
            whole = parameter if "mesh" in options else parameter.to("npu")
            close(whole.full_tensor(), expected[name])


def case_fully_sharded_state_and_norm() -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    model, alone = network(), train(network(), joint_batch)
    fully_shard(model)
    train(model, my_part)
    norms = [nn.utils.clip_grad_norm_(each.parameters(), 0.1) for each in (model, alone)]
    close(norms[0].full_tensor(), norms[1])
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if RANK == 0:
        for name, parameter in alone.named_parameters():
            close(state[name], parameter)


def case_fsdp_of_the_first_kind() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(network(), device_id=torch.npu.current_device(), use_orig_params=True)
    train(model, my_part)
    with FullyShardedDataParallel.summon_full_params(model):
        weights = {name.replace("_fsdp_wrapped_module.", ""): each for name, each in model.named_parameters()}
        for name, expected in expected_weights().items():
            close(weights[name], expected)


def case_optimizer_in_parts() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def kind(parameters: Any, lr: float) -> ZeroRedundancyOptimizer:
        return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=lr)

    alike(train(DistributedDataParallel(network()), my_part, STEPS, kind).module, train(network(), joint_batch))


def case_checkpoints() -> None:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard

    model, other = network(), network()
    for each in (model, other):
        fully_shard(each)
    train(model, my_part)
    folder = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(folder, 0)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    state = {"model": other.state_dict()}
    checkpoint.load(state, checkpoint_id=folder[0])
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        same(one.full_tensor().detach(), another.full_tensor().detach().cpu())


def case_pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    model, alone = network(), network()
    part = model.first if RANK == 0 else model.second
    stage = PipelineStage(part, RANK, 2, torch.device("npu", torch.npu.current_device()))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    x, y = joint_batch(0)
    losses: list[torch.Tensor] = []
    if RANK == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=losses)
        for loss, rows, wanted in zip(losses, x.chunk(2), y.chunk(2), strict=True):
            close(loss, nn.functional.mse_loss(alone.second(alone.first(rows)), wanted))
    assert part.weight.grad is not None


def case_compiled() -> None:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD

    @torch.compile(fullgraph=True, backend="aot_eager")
    def doubled_sum(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", group) + 1

    same(doubled_sum(torch.ones(3).npu()), torch.full((3,), 5.0))
    compiled = torch.compile(DistributedDataParallel(network()), backend="aot_eager")
    alone = network()
    x, y = my_part(0)
    nn.functional.mse_loss(compiled(x), y).backward()
    whole, wanted = joint_batch(0)
    nn.functional.mse_loss(alone(whole), wanted).backward()
    for one, other in zip(compiled.parameters(), alone.parameters(), strict=True):
        close(one.grad, other.grad)


def case_random_numbers_of_sharded_tensors() -> None:
    from torch.distributed import tensor as distributed
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("npu", (2,))
    torch.manual_seed(5)
    before = torch.npu._get_rng_state_offset()
    parts = distributed.rand(4, 3, device_mesh=mesh, placements=[Shard(0)])
    whole = parts.full_tensor()
    assert not torch.equal(whole[:2], whole[2:])
    copies = distributed.randn(4, 3, device_mesh=mesh, placements=[Replicate()])
    gathered = [torch.empty(4, 3).npu() for _ in range(2)]
    dist.all_gather(gathered, copies.to_local())
    same(gathered[0], gathered[1].cpu())
    offsets = [torch.zeros(1, dtype=torch.int64).npu() for _ in range(2)]
    dist.all_gather(offsets, torch.tensor([torch.npu._get_rng_state_offset()]).npu())
    assert offsets[0].item() == offsets[1].item() > before

    weight = nn.Parameter(distributed.empty(64, 64, device_mesh=mesh, placements=[Shard(0)]))
    nn.init.normal_(weight, std=2.0)
    values = weight.full_tensor()
    assert 1.8 < values.std().item() < 2.2
    assert values.unique().numel() > 4000

    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)).npu()
    torch.manual_seed(6)
    parallelize_module(model, mesh, {"0": ColwiseParallel(use_local_output=False)})
    dropped = model(torch.ones(16, 8).npu()).full_tensor() == 0
    assert 0.3 < dropped.float().mean().item() < 0.7
    assert not torch.equal(dropped[:, :32], dropped[:, 32:])


def case_fully_sharded_from_meta() -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(7)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="npu")
    for layer in model:
        layer.reset_parameters()
    weights = [layer.weight.full_tensor() for layer in model]
    assert not torch.equal(*weights)
    for weight in weights:
        assert 0 < weight.abs().max().item() <= 32**-0.5
        assert weight.unique().numel() > 1000
    model(torch.ones(4, 32).npu()).sum().backward()
