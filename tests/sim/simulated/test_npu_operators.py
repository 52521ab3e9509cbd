"""torch_npu's operators on the simulated card: as on the CPU, and with the shapes that a compiler assumes.

Holds compat/torch_npu/operators on a card against the CPU, and shapes under FakeTensorMode. tests/sim/test_simulated.py
runs this module in a process with simulated cards.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

import toprope.compat.torch_npu as torch_npu
from npu_samples import every_sample

SIM = "910B3"
SAMPLES = every_sample()
# These need a group of processes; their tests are in tests/sim/test_distributed.py.
WITHOUT = {
    "_npu_distribute_barrier", "npu_all_gather_base_mm", "npu_all_to_all_matmul", "npu_alltoallv_gmm",
    "npu_gmm_alltoallv", "npu_matmul_all_to_all", "npu_mm_all_reduce_base", "npu_mm_reduce_scatter_base",
    "npu_moe_distribute_combine", "npu_moe_distribute_combine_add_rms_norm", "npu_moe_distribute_combine_v2",
    "npu_moe_distribute_dispatch", "npu_moe_distribute_dispatch_v2",
    # About storage and formats, or without a tensor to lie on the card; they have tests of their own.
    "copy_memory_", "empty_with_format", "empty_with_swapped_memory", "get_npu_format", "get_storage_size",
    "npu_apply_adam", "npu_apply_adam_w", "npu_bert_apply_adam", "npu_change_data_ptr", "npu_dropout_gen_mask",
    "npu_dtype_cast", "npu_format_cast", "npu_format_cast.Tensor", "npu_format_cast_", "npu_format_cast_.acl_format",
    "unsafe_empty_with_format",
    # Their lengths or seeds stay on the CPU.
    "npu_fusion_attention_v3", "npu_paged_cache_load", "npu_ring_mla", "npu_ring_mla.out",
    # Not on the 910B: for the Ascend 950 or the 310P alone, or with a storage format of the card's own.
    "_npu_rms_norm_backward_quant", "npu_add_quant_matmul", "npu_add_quant_matmul_",
    "npu_add_rms_norm_dynamic_mx_quant", "npu_anti_mx_quant", "npu_dual_level_quant_matmul",
    "npu_dynamic_block_mx_quant", "npu_dynamic_dual_level_mx_quant", "npu_dynamic_mx_quant",
    "npu_dynamic_mx_quant_with_dual_axis", "npu_fused_matmul", "npu_gelu_quant", "npu_grouped_dynamic_block_quant",
    "npu_grouped_dynamic_mx_quant", "npu_mhc_post", "npu_mhc_post_backward", "npu_mhc_pre", "npu_mhc_pre_backward",
    "npu_mhc_sinkhorn", "npu_mhc_sinkhorn_backward", "npu_quant_grouped_matmul_dequant", "npu_quant_matmul_dequant",
    "npu_quant_matmul_reduce_sum", "npu_quant_max", "npu_rms_norm_dynamic_mx_quant", "npu_rms_norm_quant_v2",
    "npu_swiglu_mx_quant", "npu_swiglu_mx_quant_with_dual_axis", "npu_transpose_quant_batchmatmul",
}  # fmt: skip
# Their results are drawn, or hold values that are left as they are.
ONLY_SHAPES = {
    "_dropout_with_byte_mask", "_npu_dropout", "_npu_fused_infer_attention_score_get_max_workspace",
    "_npu_fused_infer_attention_score_infer_output", "_npu_fused_infer_attention_score_v2_get_max_workspace",
    "_npu_fused_infer_attention_score_v2_infer_output", "_npu_fusion_attention_grad_v3_infer_output",
    "_npu_fusion_attention_v3_infer_output", "_npu_multi_head_latent_attention_get_workspace.lse",
    "_npu_paged_attention_get_workspace", "_npu_paged_attention_v2_get_workspace", "dropout_with_byte_mask",
    "npu_dropout_with_add_softmax", "npu_random_choice_with_mask", "npu_sub_sample",
}  # fmt: skip


def moved(tree, to):
    return tree_map(lambda leaf: leaf.clone().to(to) if isinstance(leaf, torch.Tensor) else leaf, tree)


def called(name, args, kwargs):
    packet, _, overload = name.partition(".")
    made = torch_npu.OPERATORS[name]
    operator = getattr(getattr(getattr(torch.ops, made.namespace), packet), overload or "default")
    result = operator(*args, **kwargs)
    written = operator._schema.is_mutable or "out" in kwargs
    return tree_leaves((result, args, kwargs) if written else result)


def test_every_operator_has_a_sample():
    assert {*torch_npu.OPERATORS} - WITHOUT == {*SAMPLES}


@pytest.mark.parametrize("name", SAMPLES)
def test_as_on_the_cpu(name):
    expected = called(name, *moved(SAMPLES[name], "cpu"))
    found = called(name, *moved(SAMPLES[name], "npu"))
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        if not isinstance(want, torch.Tensor):
            assert got == want
            continue
        assert (got.device.type, got.shape, got.dtype) == ("npu", want.shape, want.dtype)
        if name not in ONLY_SHAPES:
            torch.testing.assert_close(got.cpu(), want, equal_nan=True)


KINDS = (
    (torch.float16, torch.bfloat16, torch.float32),
    (torch.int32, torch.int64),
    (torch.bool, torch.uint8),
)


def in_other_dtypes(sample):
    """The sample as it is, and with all of its floating numbers, integers or masks in another dtype."""
    there = {leaf.dtype for leaf in tree_leaves(sample) if isinstance(leaf, torch.Tensor)}
    yield sample
    for kinds in KINDS:
        for to in kinds:
            if {to} != there.intersection(kinds) != set():
                yield tree_map(lambda leaf, kinds=kinds, to=to: _cast(leaf, kinds, to), sample)


def _cast(leaf, kinds, to):
    return leaf.to(to) if isinstance(leaf, torch.Tensor) and leaf.dtype in kinds else leaf


def differentiated(name, args, kwargs):
    """Call the operator with all floating tensors as leaves, and the gradients if it has them."""
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.dtype in KINDS[0]:
            leaf.requires_grad_()
    results = [each for each in called(name, args, kwargs) if isinstance(each, torch.Tensor) and each.requires_grad]
    results = [each for each in results if each.grad_fn is not None]
    if results:
        sum(each.abs().float().sum() for each in results).backward()


@pytest.mark.filterwarnings("ignore:.*autograd kernel was not registered:UserWarning")
@pytest.mark.parametrize("name", SAMPLES)
def test_no_operator_of_torch_inside_refuses_a_dtype_that_the_operator_takes(name):
    """What an operator takes on the CPU, which has no refusals but its own, it takes on a checked card."""
    for call in (called, differentiated):
        for sample in in_other_dtypes(moved(SAMPLES[name], "cpu")):
            try:
                call(name, *moved(sample, "cpu"))
            except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
                continue
            refused = ""
            try:
                call(name, *moved(sample, "npu"))
            except RuntimeError as error:
                refused = str(error)
            own = refused.startswith(f"{name.partition('.')[0]}: ") and "not for the simulated chip" in refused
            assert own or not refused


@pytest.mark.parametrize("name", SAMPLES)
def test_a_compiler_sees_the_same_shapes(name):
    expected, given = called(name, *moved(SAMPLES[name], "npu")), moved(SAMPLES[name], "npu")
    with FakeTensorMode() as mode:
        fakes = tree_map(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf, given)
        found = called(name, *fakes)
    for got, want in zip(found, expected, strict=True):
        if isinstance(want, torch.Tensor):
            assert (got.device, got.shape, got.dtype) == (want.device, want.shape, want.dtype)


def test_tensors_on_several_devices_named_an_inner_operator():
    x = torch.ones(2, 4, dtype=torch.float16)
    with pytest.raises(
        RuntimeError, match="npu_add_rms_norm: its tensors are on several devices: x1 npu:0, x2 npu:0, gamma cpu"
    ):
        torch_npu.npu_add_rms_norm(x.npu(), x.npu(), x[0])


def test_an_operator_without_a_gradient_warns_on_the_card_too():
    x = torch.ones(2, 4, dtype=torch.float16, device="npu", requires_grad=True)
    y = torch_npu.npu_add_rms_norm(x, x, torch.ones(4, dtype=torch.float16, device="npu"))[0]
    assert y.requires_grad
    with pytest.warns(UserWarning, match="an autograd kernel was not registered"):
        y.sum().backward()
    assert x.grad is None


def test_four_bits_in_the_cards_format_take_groups_of_64_or_128():
    """https://github.com/vllm-project/vllm-ascend/issues/5603"""
    torch.npu.config.allow_internal_format = True
    x, scale = (
        torch.ones(2, 512, dtype=torch.float16, device="npu"),
        torch.ones(2, 64, dtype=torch.float16, device="npu"),
    )
    weight = torch_npu.npu_convert_weight_to_int4pack(torch.ones(512, 64, dtype=torch.int32, device="npu"))
    torch_npu.npu_weight_quant_batchmatmul(x, weight, scale, antiquant_group_size=256)
    weight = torch_npu.npu_format_cast(weight, torch_npu.Format.FRACTAL_NZ)
    with pytest.raises(RuntimeError, match="should be 128 or 64, not 256"):
        torch_npu.npu_weight_quant_batchmatmul(x, weight, scale, antiquant_group_size=256)


@pytest.mark.parametrize(
    ("shape", "angles", "refused"),
    [
        ((2, 8, 1, 64), (1, 1, 1, 64), False),  # one position: read as BND
        ((2, 8, 2, 64), (1, 1, 2, 64), False),
        ((2, 9, 2, 64), (1, 1, 2, 64), True),
        ((2, 9, 2, 64), (2, 1, 2, 64), False),  # B1SD
        ((2, 2, 9, 64), (1, 2, 1, 64), False),  # BSND
        ((2, 1, 41, 48), (1, 1, 41, 48), False),  # B, not B * N, is broadcast
        ((2, 2, 41, 48), (1, 1, 41, 48), True),  # halves of 48 bytes, two positions for a core
        ((2, 2, 41, 80), (1, 1, 41, 80), False),
    ],
)
def test_rotary_mul_of_many_heads_before_few_positions_ran_here(shape, angles, refused):
    """https://github.com/modelscope/ms-swift/issues/9329: 561002 in BNSD layout."""
    x, cosines, sines = (torch.randn(s).half().npu() for s in (shape, angles, angles))
    if not refused:
        assert torch_npu.npu_rotary_mul(x, cosines, sines).shape == shape
        return
    with pytest.raises(RuntimeError, match=r"aclnnRotaryPositionEmbedding failed, error code is 561002.* is BNSD"):
        torch_npu.npu_rotary_mul(x, cosines, sines)
