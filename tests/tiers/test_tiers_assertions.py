"""The 32 assertions about tiers, devices and modes: which tests hold each of them, and those that have no other test.

1-4   test_apt_system: which device, what is reported of it, memory of machine and cards
5     test_apt_system: what is dropped goes back to the system
6-10  test_apt_backend: backends, streams, one manager
11    test_apt_system: one seed
12-19 test_apt_vgpu_stack, test_tiers_stack_disk, test_tiers_levels, test_tiers_plan, test_example_npu_integration
20-21 test_tiers_modes, test_apt_vb_global
22    test_tiers_training: the mission's example
23    test_tiers_training_activations: addresses that come again
24    test_tiers_training: killed and resumed
25    test_tiers_attach: tied weights, adapters, state, dtypes, orders
26    test_pages_formats: formats in few bits
27    here: attention
28    test_tiers_benchmark: how near to the limit (the figures are in docs/benchmarks.md)
29    test_tiers_ring, test_tiers_faults: random schedules
30    test_tiers_stats: what the system counts
31    here: several cards
32    test_tiers_training, test_tiers_disk: four times the memory of a process
"""

import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from apt_machines import FACADES
from device_stand_ins import told

pytestmark = [pytest.mark.native, pytest.mark.process]

TESTS = Path(__file__).resolve().parents[1]
SOAK = os.environ.get("TOPROPE_SOAK") == "1"

ASSERTIONS = {
    1: ["test_apt_system::test_1_2_which_device"],
    2: ["test_apt_system::test_1_2_which_device"],
    3: [
        "test_apt_system::test_3_the_device_info_agrees_with_the_choice_and_tells_all_vendors",
        "test_apt_system::test_3_the_version_is_that_of_the_torch_npu_that_is_installed",
    ],
    4: [
        "test_apt_system::test_4_memory_of_the_machine_and_of_every_card",
        "test_apt_system::test_4_without_psutil_the_figures_are_those_of_proc_and_a_sick_card_stops_nothing",
    ],
    5: ["test_apt_system::test_5_memory_cleanup_gives_dropped_cycles_back_to_the_system"],
    6: ["test_apt_backend::test_6_the_cpu_has_real_memory_real_cores_and_whole_numbers_of_bytes"],
    7: [
        "test_apt_backend::test_7_a_device_that_is_not_there_is_an_error_when_the_backend_is_made",
        "test_apt_backend::test_7_a_torch_npu_that_cannot_be_loaded_never_propagates",
    ],
    8: ["test_apt_backend::test_8_10_work_of_a_stream_context_is_seen_after_it_and_tensors_arrive_as_they_were"],
    9: [
        "test_apt_backend::test_9_one_manager_and_one_backend_for_16_threads",
        "test_apt_backend::test_9_lookups_change_nothing_and_every_device_has_its_summary",
        "test_apt_backend::test_9_a_sick_card_is_an_entry_of_the_summary_and_no_error",
    ],
    10: [
        "test_apt_backend::test_8_10_work_of_a_stream_context_is_seen_after_it_and_tensors_arrive_as_they_were",
        "test_apt_backend::test_10_the_best_device_is_one_for_all_who_are_asked",
    ],
    11: ["test_apt_system::test_11_one_seed_gives_the_same_numbers_on_every_device"],
    12: [
        "test_apt_vgpu_stack::test_12_the_default_takes_no_more_than_is_free",
        "test_apt_vgpu_stack::test_12_level_0_is_where_get_device_goes",
    ],
    13: [
        "test_apt_vgpu_stack::test_13_eviction_loses_nothing",
        "test_tiers_stack_disk::test_13_forty_tensors_on_three_levels_are_all_there",
    ],
    14: [
        "test_tiers_stack_disk::test_14_what_lies_on_the_disk_is_a_file_and_no_memory",
        "test_tiers_stack_disk::test_14_every_kind_of_tensor_comes_back_bit_for_bit",
    ],
    15: [
        "test_tiers_stack_disk::test_15_one_key_counts_once_and_everything_comes_back",
        "test_tiers_stack_disk::test_15_four_threads_with_3000_operations_each",
    ],
    16: ["test_tiers_stack_disk::test_16_what_is_too_large_for_all_levels_changes_nothing"],
    17: [
        "test_apt_vgpu_stack::test_17_every_documented_call_is_there",
        "test_example_npu_integration::test_17_six_steps_pass",
    ],
    18: [
        "test_tiers_stack_disk::test_18_what_was_prefetched_is_there",
        "test_tiers_stack_disk::test_18_a_failure_in_the_background_is_told_at_the_next_call",
    ],
    19: [
        "test_tiers_plan::test_a_cycle_hits_all_but_two",
        "test_tiers_plan::test_forward_and_backward_hit_as_often_as_beladys_choice",
        "test_tiers_levels::test_19_a_cycle_hits_all_but_two_of_its_room",
        "test_tiers_levels::test_19_there_and_back_hits_as_the_best_choice_does",
    ],
    20: [
        "test_apt_vb_global::test_each_preset_does_what_its_configuration_says",
        "test_apt_vb_global::test_what_is_not_faster_is_refused_and_nothing_changes",
        "test_tiers_modes::test_speed_keeps_weights_in_few_bits_and_nothing_else_changes",
        "test_tiers_modes::test_memory_multiplies_in_bf16_and_moves_activations_to_the_disk",
        "test_tiers_modes::test_blocks_are_computed_again_with_the_same_numbers_and_less_is_saved",
        "test_tiers_modes::test_attention_goes_the_fused_way_and_the_weights_are_there_when_they_are_looked_at",
        "test_tiers_modes::test_off_takes_every_hook_away",
    ],
    21: [
        "test_apt_vb_global::test_any_program_of_a_run_is_in_the_mode",
        "test_apt_vb_global::test_each_mode_is_enabled_by_its_name",
        "test_apt_vb_global::test_an_unknown_mode_is_an_error_that_lists_the_four",
        "test_apt_vb_global::test_without_the_switch_importing_prints_and_changes_nothing",
    ],
    22: ["test_tiers_training::test_the_missions_example_in_a_quarter_of_its_memory"],
    23: [
        "test_tiers_training_activations::test_an_address_that_comes_again_is_another_tensor",
        "test_tiers_training_activations::test_gradients_are_the_same_bits",
    ],
    24: [
        "test_tiers_training::test_killed_and_resumed",
        "test_tiers_training::test_the_same_bits_wherever_things_lie",
    ],
    25: [
        "test_tiers_attach::test_outputs_and_gradients_are_those_of_the_model_in_memory",
        "test_tiers_attach::test_adapters_are_added_after_attaching_trained_and_taken_away",
        "test_tiers_attach::test_dtype_moves_and_new_weights",
        "test_tiers_attach::test_layers_are_skipped_repeated_and_in_another_order",
    ],
    26: [
        "test_pages_formats::test_every_code_and_every_scale",
        "test_pages_formats::test_the_reference_scales_and_what_is_decoded_are_those_of_plain_python",
        "test_pages_formats::test_any_shape_and_dtype_in_the_bytes_that_it_takes",
        "test_pages_formats::test_a_nan_or_an_infinity_spoils_its_own_block_alone",
        "test_pages_formats::test_outliers_of_30_sigma_cost_their_blocks_alone",
        "test_pages_formats::test_errors_on_gaussian_weights",
        "test_pages_formats::test_encoding_takes_less_than_twice_the_tensor_beside_it",
        "test_pages_formats::test_bytes_are_those_of_torchao_and_torchao_decodes_ours",
        "test_pages_formats::test_a_page_survives_torch_save_safetensors_and_a_move",
        "test_pages_kernels::test_a_layer_computes_trains_its_inputs_and_comes_back_from_a_state_dict",
    ],
    27: ["test_tiers_assertions::test_27_attention_with_masks_is_exact_and_saves_no_square"],
    28: ["test_tiers_benchmark::test_passes_from_disk_and_host_are_measured_beside_accelerate"],
    29: [
        "test_tiers_ring::test_random_schedules_give_no_wrong_number",
        "test_tiers_ring::test_a_thousand_random_schedules_give_no_wrong_number",
        "test_tiers_faults::test_a_thousand_random_schedules_of_training_end_in_the_same_bits",
    ],
    30: [
        "test_tiers_stats::test_30_bytes_from_the_disk_are_those_that_the_system_counts",
        "test_tiers_stats::test_the_timeline_shows_every_load_and_every_use",
    ],
    31: ["test_tiers_assertions::test_31_the_guides_snippet_for_several_cards"],
    32: [
        "test_tiers_training::test_a_model_of_four_times_the_memory_of_its_process",
        "test_tiers_disk::test_a_model_of_four_times_the_memory_of_a_process_runs",
    ],
}


def named(file):
    (path,) = TESTS.glob(f"*/{file}")
    return re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_assertion_has_tests():
    assert sorted(ASSERTIONS) == list(range(1, 33))
    for number, tests in ASSERTIONS.items():
        assert tests, number
        for each in tests:
            file, _, name = each.partition("::")
            assert name in named(f"{file}.py"), f"assertion {number}: {each} is not there"


@pytest.mark.parametrize("head", [64, 80, 128])
def test_27_attention_with_masks_is_exact_and_saves_no_square(head):
    """What the modes' flash attention is: torch's own, forward and backward, causal and with padding."""
    from toprope.compat.apt_model.optimization import vb_global as vb

    torch.manual_seed(head)
    heads, longest = 2, 4096 if SOAK else 1024
    module = nn.MultiheadAttention(heads * head, heads, batch_first=True)

    def attend(x, causal, padding):
        forbidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if causal else None
        return module(x, x, x, need_weights=False, attn_mask=forbidden, key_padding_mask=padding)[0]

    def by_itself(x, causal, padding):
        q, k, v = functional.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (heads, head)).transpose(1, 2) for each in (q, k, v))
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        allowed = (allowed.tril() if causal else allowed)[None, None]
        if padding is not None:
            allowed = allowed & ~padding[:, None, None, :]
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return module.out_proj(found.transpose(1, 2).flatten(2))

    def run(function, x, causal, padding):
        module.zero_grad()
        given = x.clone().requires_grad_()
        found = function(given, causal, padding)
        found.square().mean().backward()
        return [found.detach(), given.grad, module.in_proj_weight.grad.clone()]

    def saved(length):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.nbytes) or each, lambda each: each):
            x = torch.randn(1, length, heads * head, requires_grad=True)
            functional.scaled_dot_product_attention(*(x.unflatten(-1, (heads, head)).transpose(1, 2),) * 3)
            attend(x, False, None)
        return sum(kept)

    vb.enable(use_flash_attn=True, verbose=False)
    try:
        for causal in (False, True):
            for padded in (False, True):
                x = torch.randn(2, 100, heads * head)
                padding = torch.arange(100)[None] >= torch.tensor([[100], [61]]) if padded else None
                for ours, theirs in zip(
                    run(attend, x, causal, padding), run(by_itself, x, causal, padding), strict=True
                ):
                    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            x = torch.randn(1, longest, heads * head)
            torch.testing.assert_close(attend(x, False, None), by_itself(x, False, None), rtol=1e-5, atol=1e-5)
        assert saved(longest) < 2.2 * saved(longest // 2)
    finally:
        vb.disable()


@pytest.mark.parametrize(("cards", "npus"), [(None, 0), (1, 1), (2, 2)])
def test_31_the_guides_snippet_for_several_cards(cards, npus):
    install = "" if cards is None else f"import toprope.sim\ntoprope.sim.install('910B3', count={cards})\n"
    code = (
        install
        + FACADES
        + """
from torch import nn
import torch
model = nn.Linear(4, 2)
from apt_model.optimization.npu_backend import get_device_manager

manager = get_device_manager()

npu_devices = [d for d in manager.get_all_devices()
               if d.type == 'npu']

if len(npu_devices) > 1:
    model = nn.DataParallel(model.npu(), device_ids=[0, 1])
    out = model(torch.ones(6, 4, device="npu"))
    assert torch.allclose(out, model.module(torch.ones(6, 4, device="npu")))
tell([str(each) for each in npu_devices], type(model).__name__, [str(each) for each in manager.get_all_devices()])
"""
    )
    found, kind, every = told(code)
    assert found == [f"npu:{number}" for number in range(npus)]
    assert kind == ("DataParallel" if npus > 1 else "Linear")
    assert every == [*found, "cpu"]
