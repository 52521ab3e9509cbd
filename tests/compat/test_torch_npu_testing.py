"""`torch_npu.testing`: the helpers of torch_npu's tests, and the limits of their comparisons.

Holds src/toprope/compat/torch_npu/testing.
"""

import pytest

from torch_npu_programs import on_card, outcomes

pytestmark = [pytest.mark.native, pytest.mark.process]

CASES = {
    "comparisons": """
from collections import OrderedDict
import numpy as np
from torch_npu.testing.testcase import TestCase, run_tests

case = TestCase()
TestCase.setUpClass()
case.setUp()
assert case.npu_device == "npu:0" and torch.initial_seed() == 666
def fails(compare, *args, **kwargs):
    refused(AssertionError, "", compare, *args, **kwargs)

# assertRtolEqual: absolute or relative, and a share of exceptions as large as the precision
same = case.assertRtolEqual
one = torch.ones(100)
same(one, one + 9e-5)
same(one * 1e4, one * 1e4 + 0.9)
fails(same, one, one + 1e-3)
same(one.half(), one.half() + 1e-3)
same(one.bfloat16(), one.bfloat16())
fails(same, one.bfloat16(), one.bfloat16() + 0.01)
far = torch.ones(20000)
far[:2] = 5
same(torch.ones(20000), far)
far[2] = 5
fails(same, torch.ones(20000), far)
fails(same, one, one[:50])
fails(same, one, one.double())
same(one.half(), one, auto_trans_dtype=True)
nan = torch.tensor([1.0, float("nan")])
same(nan, nan)
assert "where" in refused(AssertionError, "", same, nan, torch.ones(2), message="where")
same([one, 2.0], [one.npu(), 2.00001])
same(one.npu(), [1.0] * 100)
same(np.array([True]), np.array([True]))
fails(same, np.array([True]), np.array([False]))
fails(same, np.array([1], dtype=np.complex64), np.array([1], dtype=np.complex64))

# assertEqual
case.assertEqual(1.0, 1.0 + 9e-6)
fails(case.assertEqual, 1.0, 1.0 + 2e-5)
case.assertEqual(1.0, 1.1, prec=0.2)
case.assertEqual(one, one.npu())
case.assertEqual(torch.ones(2).half(), torch.ones(2))
fails(case.assertEqual, torch.ones(2).half(), torch.ones(2), exact_dtype=True)
case.assertEqual(torch.tensor(3), 3)
case.assertEqual(nan, nan.npu())
inf = torch.tensor([float("inf"), 1.0])
case.assertEqual(inf, inf, allow_inf=True)
fails(case.assertEqual, float("inf"), float("inf"))
case.assertEqual(float("inf"), float("inf"), allow_inf=True)
case.assertEqual({"a": [one, "b"], "n": (1, {2})}, {"n": (1, {2}), "a": [one, "b"]})
fails(case.assertEqual, {"a": 1}, {"b": 1})
fails(case.assertEqual, OrderedDict(a=1, b=2), OrderedDict(b=2, a=1))
fails(case.assertEqual, [1, 2], [1, 2, 3])
case.assertEqual(torch.tensor([True]), torch.tensor([True]))
refused(TypeError, "bool", case.assertEqual, torch.tensor([True]), torch.tensor([1]))
fails(case.assertEqual, "a", "b")
case.assertNotEqual(1, 2)
case.assertNotEqual(one, one + 1)
fails(case.assertNotEqual, one, one + 1e-6)
case.assertNotEqual("a", "b")
case.assertAlmostEqual(1.0, 1.004, places=2)
case.assertTensorsSlowEqual(torch.ones(2, 2), torch.ones(2, 2) + 0.1, 0.2)
case.assertObjectIn(one, [nan, one])
fails(case.assertObjectIn, one, [one.clone()])
case.assertNotWarn(lambda: None)
import warnings
case.assertWarns(lambda: warnings.warn("x"))
with case.maybeWarnsRegex(UserWarning, "known"):
    warnings.warn("known text")
fails(case.assertNotWarn, lambda: warnings.warn("x"))

sparse, indices, values = case.genSparseTensor([4, 5, 2], 2, 6, True)
assert indices.shape == (2, 12) and values.shape == (12, 2)
assert torch.equal(case.safeToDense(sparse), sparse.to_dense())
case.assertEqual(sparse, sparse.clone())
fails(case.assertEqual, sparse, sparse * 2)
""",
    "helpers and decorators": """
import os, unittest
import numpy as np
from torch_npu.testing.common_utils import (
    SkipIfNotGteCANNVersion, SupportedDevices, check_operators_in_prof, create_common_tensor,
    create_dtype_tensor, freeze_rng_state, get_npu_device, iter_indices, _create_scaling_case)
from torch_npu.testing.common_utils import test_2args_broadcast as broadcast
from torch_npu.testing.common_distributed import TEST_SKIPS, init_pg, skipIfUnsupportMultiNPU
from torch_npu.testing.decorator import Dtypes, Formats, instantiate_tests

cpu, card = create_common_tensor([np.float16, 0, (2, 3, 4, 5)], -1, 1)
assert cpu.dtype == torch.half and torch.equal(cpu, card.cpu()) and torch_npu.get_npu_format(card) == 0
cpu, card = create_dtype_tensor((100,), torch.int32, no_zero=True)
assert cpu.dtype == torch.int32 and (cpu != 0).all() and torch.equal(cpu, card.cpu())
assert create_dtype_tensor((3,), torch.bool)[1].dtype == torch.bool
for here, there in broadcast(torch.add):
    assert here.shape == (2, 3, 4, 5) and np.array_equal(here, there)
before = torch.get_rng_state()
with freeze_rng_state():
    torch.rand(1)
assert torch.equal(before, torch.get_rng_state())
assert [*iter_indices(torch.ones(2, 2))] == [(0, 0), (0, 1), (1, 0), (1, 1)]
os.environ["SET_NPU_DEVICE"] = "3"
assert get_npu_device() == "npu:3"
del os.environ["SET_NPU_DEVICE"]
control, scaling, *_, step = _create_scaling_case()
assert torch.equal(control[0].weight, scaling[0].weight) and step == 2

ran = []
@instantiate_tests
class Tests(unittest.TestCase):
    @Dtypes(torch.half, torch.float)
    @Formats(2, 29)
    def test_both(self, dtype, npu_format, device="cpu"):
        ran.append((dtype, npu_format, device))

    @SupportedDevices(["Ascend910B"])
    def test_here(self):
        ran.append("here")

    @SupportedDevices(["Ascend910_93", "Ascend950"])
    def test_elsewhere(self):
        ran.append("elsewhere")

    @SkipIfNotGteCANNVersion("8.3.RC1")
    def test_version(self):
        ran.append("version")

    @skipIfUnsupportMultiNPU(2)
    def test_two(self):
        ran.append("two")

result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
assert not result.failures and not result.errors, result.errors
assert sorted(text for _, text in result.skipped) == [
    "Multi-NPU 2 condition not satisfied",
    "Only run on 8.3.RC1 or greater, current cann version is .",
    "Only run on ['Ascend910_93', 'Ascend950'], current device is Ascend910B.",
]
assert len(ran) == 5 and (torch.float, 29, "npu") in ran and "here" in ran
assert "test_both_float16_29" in dir(Tests) and "test_both" not in dir(Tests)
refused(RuntimeError, "No dtypes", Dtypes)
refused(RuntimeError, "Unknown dtype", Dtypes, 1)
refused(RuntimeError, "No formats", Formats)
refused(RuntimeError, "Need at least 2", init_pg, world_size=2)
refused(RuntimeError, "not supported", init_pg, backend="mpi")
assert TEST_SKIPS["multi-npu-8"].exit_code == 75

class Profile:
    def key_averages(self):
        return [type("Entry", (), {"key": key}) for key in ("cached_aten::add", "aten::mul")]
wanted = ["aten::add"]
assert check_operators_in_prof(wanted, Profile()) is True and wanted == []
assert check_operators_in_prof(["aten::sub"], Profile()) is False
assert check_operators_in_prof([], Profile(), ["aten::mul"]) is False
""",
}


@pytest.fixture(scope="module")
def failures():
    return outcomes(CASES)


@pytest.mark.parametrize("name", CASES)
def test_testing(failures, name) -> None:
    assert failures[name] == ""


@pytest.mark.slow
def test_torchs_own_suite_makes_tests_of_the_card() -> None:
    on_card("""
        import torch_npu.testing, unittest
        from torch.testing._internal import common_device_type, common_utils
        from torch.testing._internal.distributed.fake_pg import FakeStore
        from torch_npu.testing._internal.common_dtensor import NPUDTensorTestBase
        from torch_npu.testing._internal.common_fsdp import FSDPNPUTest
        import torch.distributed as dist
        from torch.testing._internal.common_modules import module_db

        assert module_db and common_utils.TEST_CUDA
        class TestCard(common_utils.TestCase):
            def test_device(self, device):
                assert device == "npu:0", device

            @common_device_type.onlyCUDA
            def test_only(self, device):
                assert device == "npu:0", device

        common_device_type.instantiate_device_type_tests(TestCard, globals())
        made = [name for name in list(globals()) if name.startswith("TestCard")]
        assert len(made) == 1, made
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(globals()[made[0]]).run(result)
        assert result.testsRun == 2 and not result.errors and not result.skipped, (result.errors, result.skipped)
        assert "npu" in dist.Backend.backend_capability["fake"] and NPUDTensorTestBase.world_size.fget(None) == 4
    """)
