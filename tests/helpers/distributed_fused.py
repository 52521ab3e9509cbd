"""Operators of torch_npu that communicate, between two processes: values against those of both, computed here."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import toprope.compat.torch_npu as torch_npu
from distributed_values import BOTH, OTHER, RANK

SIZE = 2
EXPERTS, TOP_K, TOKENS, WIDTH = 4, 2, 5, 32


def drawn(*shape: int, salt: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """The same numbers in both processes."""
    generator = torch.Generator().manual_seed(salt)
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
    return torch.randn(shape, generator=generator).to(dtype)


def comm() -> str:
    backend: Any = dist.group.WORLD._get_backend(torch.device("npu"))
    return str(backend.get_hccl_comm_name(RANK))


def close(got: Tensor, expected: Tensor, *, tolerance: float = 2e-2) -> None:
    assert got.device.type == "npu"
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got.cpu(), expected, rtol=tolerance, atol=tolerance)


def case_the_group_of_a_name() -> None:
    from toprope.sim.distributed.process_group import group_named

    alone = [dist.new_group([rank]) for rank in BOTH][RANK]
    backend = alone._get_backend(torch.device("npu"))
    assert group_named(comm()) is dist.group.WORLD
    assert group_named(backend.get_hccl_comm_name(0)) is alone
    assert group_named("no such name") is None
    x = torch.ones(4, 4, dtype=torch.float16).npu()
    with pytest.raises(RuntimeError, match="no process group has an HCCL communicator of the name 'other'"):
        torch_npu.npu_mm_reduce_scatter_base(x, x, "other", SIZE)
    with pytest.raises(RuntimeError, match=r"the world size is given as 4, but the group .* has 2 processes"):
        torch_npu.npu_mm_reduce_scatter_base(x, x, comm(), 4)
    found = torch_npu.npu_mm_all_reduce_base(x, x, backend.get_hccl_comm_name(0))
    assert torch.equal(found.cpu(), torch.full((4, 4), 4.0, dtype=torch.float16))
    dist.destroy_process_group(alone)


def case_matrix_product_with_all_reduce() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        x1 = [drawn(2, 3, 8, salt=rank, dtype=dtype) for rank in BOTH]
        x2 = [drawn(8, 6, salt=9 + rank, dtype=dtype) for rank in BOTH]
        bias, x3 = drawn(6, salt=20, dtype=dtype), drawn(2, 3, 6, salt=21, dtype=dtype)
        found = torch_npu.npu_mm_all_reduce_base(x1[RANK].npu(), x2[RANK].npu(), comm(), bias=bias.npu(), x3=x3.npu())
        total = sum(a.double() @ b.double() + bias.double() + x3.double() for a, b in zip(x1, x2, strict=True))
        close(found, total.to(dtype), tolerance=5e-2)


def case_quantised_matrix_product_with_all_reduce() -> None:
    x1 = [drawn(3, 2000, salt=rank, dtype=torch.int8) for rank in BOTH]
    x2 = [drawn(2000, 4, salt=9 + rank, dtype=torch.int8) for rank in BOTH]
    bias = torch.arange(4, dtype=torch.int32)
    scale, tokens = torch.rand(4) * 1e-4, torch.rand(3)
    for coded in (False, True):
        given = scale.view(torch.int32).long() if coded else scale
        found = torch_npu.npu_mm_all_reduce_base(
            x1[RANK].npu(), x2[RANK].npu(), comm(), bias=bias.npu(), dequant_scale=given.npu(),
            pertoken_scale=tokens.npu(),
        )  # fmt: skip
        parts = [(a.long() @ b.long() + bias).double() * scale.double() for a, b in zip(x1, x2, strict=True)]
        close(found, (sum(parts) * tokens.double().unsqueeze(1)).half())
    activation = [drawn(3, 64, salt=rank) for rank in BOTH]
    weight = drawn(64, 4, salt=5, dtype=torch.int8)
    factors, offset = drawn(2, 4, salt=6) / 64, drawn(2, 4, salt=7)
    found = torch_npu.npu_mm_all_reduce_base(
        activation[RANK].npu(), weight.npu(), comm(), antiquant_scale=factors.npu(), antiquant_offset=offset.npu(),
        antiquant_group_size=32,
    )  # fmt: skip
    exact = torch.cat([(weight[32 * g : 32 * g + 32].double() + offset[g].double()) * factors[g] for g in (0, 1)])
    close(found, sum(a.double() @ exact for a in activation).half(), tolerance=6e-2)


def case_matrix_product_with_reduce_scatter_and_all_gather() -> None:
    x1 = [drawn(4, 8, salt=rank) for rank in BOTH]
    x2 = drawn(8, 6, salt=9)
    found = torch_npu.npu_mm_reduce_scatter_base(x1[RANK].npu(), x2.npu(), comm(), SIZE)
    total = sum(a.double() @ x2.double() for a in x1)
    close(found, total[2 * RANK : 2 * RANK + 2].half())
    whole = torch.cat(x1)
    found, gathered = torch_npu.npu_all_gather_base_mm(x1[RANK].npu(), x2.npu(), comm(), SIZE)
    close(found, (whole.double() @ x2.double()).half())
    assert torch.equal(gathered.cpu(), whole)
    assert torch_npu.npu_all_gather_base_mm(x1[RANK].npu(), x2.npu(), comm(), SIZE, gather_output=False)[1].numel() == 0

    q1 = [drawn(4, 8, salt=rank, dtype=torch.int8) for rank in BOTH]
    q2 = drawn(8, 6, salt=9, dtype=torch.int8)
    rows, columns = [torch.rand(4, 1, generator=torch.Generator().manual_seed(rank)) for rank in BOTH], torch.rand(1, 6)
    options = {"x2_scale": columns.npu(), "comm_mode": "aiv", "output_dtype": torch.float16}
    torch.manual_seed(1)
    found, _ = torch_npu.npu_all_gather_base_mm(
        q1[RANK].npu(), q2.npu(), comm(), SIZE, x1_scale=rows[RANK].npu(), **options
    )
    exact = (torch.cat(q1).long() @ q2.long()).double() * torch.cat(rows) * columns
    close(found, exact.half())
    found = torch_npu.npu_mm_reduce_scatter_base(
        q1[RANK].npu(), q2.npu(), comm(), SIZE, x1_scale=rows[RANK].npu(), **options
    )
    exact = sum((a.long() @ q2.long()).double() * r * columns for a, r in zip(q1, rows, strict=True))
    close(found, exact[2 * RANK : 2 * RANK + 2].half())
    with pytest.raises(RuntimeError, match="When comm_mode is ai_cpu, quantization not supported"):
        torch_npu.npu_mm_reduce_scatter_base(q1[0].npu(), q2.npu(), comm(), SIZE, x2_scale=columns.npu())


def case_matrix_product_with_all_to_all() -> None:
    x1 = [drawn(4, 3, salt=rank, dtype=torch.bfloat16) for rank in BOTH]
    x2, bias = drawn(6, 5, salt=9, dtype=torch.bfloat16), drawn(5, salt=3, dtype=torch.float32)
    found, moved = torch_npu.npu_all_to_all_matmul(x1[RANK].npu(), x2.npu(), comm(), SIZE, bias.npu())
    rows = torch.cat([each[2 * RANK : 2 * RANK + 2] for each in x1], 1)
    assert torch.equal(moved.cpu(), rows)
    close(found, (rows.double() @ x2.double() + bias.double()).bfloat16(), tolerance=5e-2)
    assert torch_npu.npu_all_to_all_matmul(x1[RANK].npu(), x2.npu(), comm(), SIZE, all2all_out_flag=False)[1] is None

    x2 = drawn(3, 6, salt=9, dtype=torch.bfloat16)
    found = torch_npu.npu_matmul_all_to_all(x1[RANK].npu(), x2.npu(), comm(), SIZE)
    products = [each.double() @ x2.double() for each in x1]
    close(found, torch.cat([each[:, 3 * RANK : 3 * RANK + 3] for each in products]).bfloat16(), tolerance=5e-2)


def case_grouped_products_with_all_to_all() -> None:
    local, width = 3, 4
    sent = [[2, 0, 1, 3, 1, 2], [1, 1, 0, 0, 2, 4]]  # of each process: for expert j of process r, at r * 3 + j
    received = [[*sent[0][local * r : local * r + local], *sent[1][local * r : local * r + local]] for r in BOTH]
    x = [drawn(sum(sent[rank]), width, salt=rank) for rank in BOTH]
    weights = [drawn(local, width, 5, salt=30 + rank) for rank in BOTH]
    shared, weight = drawn(3, 7, salt=40), drawn(7, 2, salt=41)
    parts = [torch.split(x[rank], sent[rank]) for rank in BOTH]
    ordered = [torch.cat([parts[s][local * r + j] for j in range(local) for s in BOTH]) for r in BOTH]
    experts = [j for j in range(local) for s in BOTH for _ in range(sent[s][local * RANK + j])]
    found, both, permuted = torch_npu.npu_alltoallv_gmm(
        x[RANK].npu(), weights[RANK].transpose(1, 2).contiguous().npu(), comm(), SIZE, sent[RANK], received[RANK],
        mm_x=shared.npu(), mm_weight=weight.npu(), trans_gmm_weight=True, permute_out_flag=True,
    )  # fmt: skip
    assert torch.equal(permuted.cpu(), ordered[RANK])
    exact = [row.double() @ weights[RANK][j].double() for row, j in zip(ordered[RANK], experts, strict=True)]
    close(found, torch.stack(exact).half())
    close(both, (shared.double() @ weight.double()).half())

    back, none = torch_npu.npu_gmm_alltoallv(permuted, weights[RANK].npu(), comm(), SIZE, received[RANK], sent[RANK])
    owners = [(slot // local, slot % local) for slot, count in enumerate(sent[RANK]) for _ in range(count)]
    exact = [row.double() @ weights[r][j].double() for row, (r, j) in zip(x[RANK], owners, strict=True)]
    close(back, torch.stack(exact).half())
    assert none is None


def _dispatch(version: int, x: Tensor, ids: Tensor, **keywords: Any) -> Any:
    call = torch_npu.npu_moe_distribute_dispatch if version == 1 else torch_npu.npu_moe_distribute_dispatch_v2
    return call(x.npu(), ids.npu(), comm(), SIZE, RANK, EXPERTS, **keywords)


def _combine(version: int, rows: Tensor, ids: Tensor, sent: Any, scales: Tensor, **keywords: Any) -> Tensor:
    call = torch_npu.npu_moe_distribute_combine if version == 1 else torch_npu.npu_moe_distribute_combine_v2
    return call(rows, ids.npu(), sent[2], sent[4], scales.npu(), comm(), SIZE, RANK, EXPERTS, **keywords)


def _choices(rank: int, experts: int = EXPERTS) -> Tensor:
    generator = torch.Generator().manual_seed(50 + rank)
    return torch.stack([torch.randperm(experts, generator=generator)[:TOP_K] for _ in range(TOKENS)]).int()


def case_dispatch_and_combine() -> None:
    x, ids = [drawn(TOKENS, WIDTH, salt=rank) for rank in BOTH], [_choices(rank) for rank in BOTH]
    scales = torch.rand(TOKENS, TOP_K, generator=torch.Generator().manual_seed(RANK))
    first, local = RANK * 2, 2
    slots = [(e, r, i) for e in range(first, first + local) for r in BOTH for i in range(TOKENS) if e in ids[r][i]]
    counts = [[sum(s[:2] == (e, r) for s in slots) for r in BOTH] for e in range(first, first + local)]
    for version in (1, 2):
        sent = _dispatch(version, x[RANK], ids[RANK], expert_token_nums_type=2 - version)
        assert sent[0].shape == (TOKENS * SIZE * 2, WIDTH)
        assert torch.equal(sent[0][: len(slots)].cpu(), torch.stack([x[r][i] for _, r, i in slots]))
        assert not sent[0][len(slots) :].any()
        assert sent[2].shape == (TOKENS * TOP_K if version == 1 else TOKENS * SIZE * 2 * 128,)
        sums = [sum(counts[0]), sum(counts[0]) + sum(counts[1])]
        assert sent[3].tolist() == ([sum(each) for each in counts] if version == 1 else sums)
        assert sent[4].tolist() == torch.tensor(counts).flatten().cumsum(0).tolist()
        results = sent[0].clone()
        for row, (expert, _, _) in enumerate(slots):
            results[row] *= expert + 1
        found = _combine(version, results, ids[RANK], sent, scales)
        factors = (scales.double() * (ids[RANK] + 1)).sum(1, keepdim=True)
        close(found, (x[RANK].double() * factors).half())
    residual, gamma = drawn(TOKENS, 1, WIDTH, salt=60), drawn(WIDTH, salt=61)
    y, rstd, total = torch_npu.npu_moe_distribute_combine_add_rms_norm(
        results, ids[RANK].npu(), sent[2], sent[4], scales.npu(), residual.npu(), gamma.npu(), comm(), SIZE, RANK,
        EXPERTS,
    )  # fmt: skip
    exact = found.cpu().double().unsqueeze(1) + residual.double()
    close(total, exact.half())
    root = exact.square().mean(-1, keepdim=True).add(1e-6).sqrt()
    close(rstd, (1 / root).float())
    close(y, (exact / root * gamma.double()).half(), tolerance=5e-2)


def case_dispatch_of_some_tokens_with_quantisation() -> None:
    x, ids = [drawn(TOKENS, WIDTH, salt=rank) for rank in BOTH], [_choices(rank) for rank in BOTH]
    active = [torch.tensor([True] * (3 + rank) + [False] * (2 - rank)) for rank in BOTH]
    smooth, weights = (
        torch.rand(EXPERTS, WIDTH, generator=torch.Generator().manual_seed(7)) + 0.5,
        torch.rand(TOKENS, TOP_K),
    )
    sent = _dispatch(
        2, x[RANK], ids[RANK], x_active_mask=active[RANK].npu(), quant_mode=2, scales=smooth.npu(),
        expert_scales=weights.npu(), comm_alg="fullmesh",
    )  # fmt: skip
    slots = [
        (e, r, i) for e in range(RANK * 2, RANK * 2 + 2) for r in BOTH for i in range(TOKENS)
        if active[r][i] and e in ids[r][i]
    ]  # fmt: skip
    assert sent[0].dtype == torch.int8
    for row, (expert, rank, token) in enumerate(slots):
        exact = x[rank][token].double() * smooth[expert].double()
        torch.testing.assert_close(sent[1][row].item(), float(exact.abs().max() / 127), rtol=1e-5, atol=0)
        assert (sent[0][row].cpu().double() - exact * 127 / exact.abs().max()).abs().max() <= 0.501
    assert int(sent[3].sum()) == len(slots)
    results = (sent[0].float() * sent[1].unsqueeze(1)).half()
    found = _combine(2, results, ids[RANK], sent, weights, x_active_mask=active[RANK].npu())
    assert not found[~active[RANK]].any()
    assert found[active[RANK]].any()


def case_experts_without_a_card() -> None:
    x, ids = drawn(TOKENS, WIDTH, salt=RANK), _choices(RANK, EXPERTS + 4)  # 1 zero, 1 copy, 2 constant
    scales = torch.rand(TOKENS, TOP_K, generator=torch.Generator().manual_seed(RANK))
    alphas, v = [drawn(2, WIDTH, salt=salt) for salt in (70, 71)], drawn(2, WIDTH, salt=72)
    numbers = {"zero_expert_num": 1, "copy_expert_num": 1, "const_expert_num": 2}
    sent = _dispatch(2, x, ids, **numbers)
    found = _combine(
        2, sent[0], ids, sent, scales, ori_x=x.npu(), const_expert_alpha_1=alphas[0].npu(),
        const_expert_alpha_2=alphas[1].npu(), const_expert_v=v.npu(), shared_expert_x=x.npu(), **numbers,
    )  # fmt: skip
    expected = x.double()
    for i in range(TOKENS):
        for k in range(TOP_K):
            number = int(ids[i, k]) - EXPERTS
            value = x[i].double() * (number != 0)
            if number >= 2:
                value = alphas[0][number - 2].double() * value + alphas[1][number - 2].double() * v[number - 2].double()
            expected[i] += scales[i, k].double() * value
    close(found, expected.half())


def case_barrier_of_a_name() -> None:
    x = torch.full((2,), float(OTHER)).npu()
    found = torch_npu._npu_distribute_barrier(x, comm(), SIZE)
    assert torch.equal(found, x)
    assert found.data_ptr() != x.data_ptr()


def case_shapes_without_values() -> None:
    name = comm()
    with FakeTensorMode():
        x, weight = (
            torch.empty(4, 8, dtype=torch.float16, device="npu"),
            torch.empty(8, 6, dtype=torch.float16, device="npu"),
        )
        ids, scales = torch.empty(4, 2, dtype=torch.int32, device="npu"), torch.empty(4, 2, device="npu")
        assert torch_npu.npu_mm_all_reduce_base(x, weight, name).shape == (4, 6)
        assert torch_npu.npu_mm_reduce_scatter_base(x, weight, name, SIZE).shape == (2, 6)
        assert [each.shape for each in torch_npu.npu_all_gather_base_mm(x, weight, name, SIZE)] == [(8, 6), (8, 8)]
        sent = torch_npu.npu_moe_distribute_dispatch_v2(x, ids, name, SIZE, RANK, EXPERTS)
        assert [tuple(each.shape) for each in sent] == [(16, 8), (16,), (2048,), (2,), (4,), (0,), (16,)]
        found = torch_npu.npu_moe_distribute_combine_v2(
            sent[0], ids, sent[2], sent[4], scales, name, SIZE, RANK, EXPERTS
        )
        assert found.shape == (4, 8)
        assert found.device.type == "npu"


def case_refusals_of_dispatch() -> None:
    x, ids = drawn(TOKENS, WIDTH, salt=0), _choices(0)
    with pytest.raises(RuntimeError, match="quant_mode is 1"):
        _dispatch(2, x, ids, quant_mode=1)
    with pytest.raises(RuntimeError, match="shared experts on cards of their own are not simulated"):
        _dispatch(2, x, ids, shared_expert_rank_num=1)
    with pytest.raises(RuntimeError, match="the rank is given as"):
        torch_npu.npu_moe_distribute_dispatch_v2(x.npu(), ids.npu(), comm(), SIZE, OTHER, EXPERTS)
    with pytest.raises(RuntimeError, match=r"ep_rank_id should be in \[0, ep_world_size\)"):
        torch_npu.npu_moe_distribute_dispatch_v2(x.npu(), ids.npu(), comm(), SIZE, 2, EXPERTS)
    with pytest.raises(RuntimeError, match="moe_expert_num 3 is not a multiple"):
        torch_npu.npu_moe_distribute_dispatch_v2(x.npu(), ids.npu(), comm(), SIZE, RANK, 3)
