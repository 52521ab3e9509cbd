"""Operators that a release of torch_npu has no kernel for: they run on the host, and are counted and warned of.

Holds csrc/torch/host_operators.cpp and support/operators_on_card.py against releases of torch_npu.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

from pathlib import Path

import pytest
import torch

from children import run
from toprope.sim.metrics import counters

SIM = "910B3,torch_npu=2.1.0.post6"

WARNING = (
    "CAUTION: The operator '{}' is not currently supported on the NPU backend and will fall back to run on the CPU."
)


def left_card(code: str, folder: Path, sim: str = SIM, **variables: str) -> tuple[str, list[counters.HostSite]]:
    """What a program wrote to stderr, and the places where it left the card."""
    done = run(code, sim=sim, file=folder / "program.py", TOPROPE_RUN_DIR=str(folder), **variables)
    assert done.returncode == 0, done.stderr
    return done.stderr, [site for one in counters.read_run(folder) for site in one.host_sites]


def test_an_operator_on_the_host_warns_once_and_is_counted_by_place_with_its_bytes(tmp_path):
    program = """
        import torch
        x, y = torch.rand(1000).npu(), torch.rand(1000).npu()
        for _ in range(3):
            z = torch.hypot(x, y)
        z.hypot_(x)
        print((z + x).sum().item())
    """
    stderr, sites = left_card(program, tmp_path)
    assert stderr.count(WARNING.format("aten::hypot.out")) == 1
    assert stderr.count("CAUTION") == 1
    # Three tensors go to the host, among them the result, and one comes back.
    assert [(site.operation, site.line, site.times) for site in sites] == [
        ("aten::hypot.out", 5, 3),
        ("aten::hypot.out", 6, 1),
    ]
    assert (sites[0].bytes_to_host, sites[0].bytes_back) == (3 * 12_000, 3 * 4_000)
    assert sites[0].file.endswith("program.py")


def test_the_release_decides_where_an_operator_runs(tmp_path):
    program = """
        import torch
        x = torch.arange(4).npu()
        print(torch.isin(x, x[:2]).cpu().tolist())
    """
    for version, expected in (("2.1.0.post6", ["aten::isin.Tensor_Tensor_out"]), ("2.1.0.post8", [])):
        folder = tmp_path / version
        folder.mkdir()
        stderr, sites = left_card(program, folder, sim=f"910B3,torch_npu={version}")
        assert [site.operation for site in sites] == expected
        assert ("CAUTION" in stderr) == bool(expected)


def test_operators_of_a_backward_pass_are_counted(tmp_path):
    program = """
        import torch
        x = torch.rand(8).npu().requires_grad_()
        torch.lgamma(x).sum().backward()
    """
    _, sites = left_card(program, tmp_path)
    assert {site.operation for site in sites} == {"aten::lgamma.out", "aten::digamma.out"}


def test_dtypes_decide_where_the_source_names_them(tmp_path):
    program = """
        import torch
        for dtype in (torch.float32, torch.float64):
            torch.nn.functional.adaptive_max_pool3d(torch.rand(1, 1, 4, 4, 4, dtype=dtype).npu(), 2)
    """
    _, sites = left_card(program, tmp_path, sim="910B3,refuse=off,torch_npu=2.7.1")
    assert [(site.operation.partition(".")[0], site.times) for site in sites] == [("aten::adaptive_max_pool3d", 1)]


def test_fallbacks_are_refused_where_the_release_knows_the_variable(tmp_path):
    program = "import torch\ntorch.hypot(torch.rand(2).npu(), torch.rand(2).npu())\nprint('ran')\n"
    refused = run(program, sim="910B3,torch_npu=2.13.0", TORCH_NPU_FALLBACK_CPU_DISABLE="1")
    assert refused.returncode != 0
    assert (
        "The operator 'aten::hypot.out' would execute its main computation on CPU through dispatcher backend fallback "
        "because no kernel is registered for the NPU PrivateUse1 backend, but CPU fallback is disabled by "
        "TORCH_NPU_FALLBACK_CPU_DISABLE=1." in refused.stderr
    )
    assert "ERR01007" in refused.stderr
    without_effect = run(program, sim=SIM, TORCH_NPU_FALLBACK_CPU_DISABLE="1")
    assert (without_effect.returncode, without_effect.stdout) == (0, "ran\n")


LIBRARY = """
    import torch
    library = torch.library.Library("elsewhere", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.define("nowhere(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    x = torch.ones(2).npu()
"""


def test_an_operator_of_another_library_runs_on_the_host(tmp_path):
    stderr, sites = left_card(LIBRARY + "    print(torch.ops.elsewhere.double(x).device)", tmp_path)
    assert WARNING.format("elsewhere::double") in stderr
    assert [(site.operation, site.bytes_to_host, site.bytes_back) for site in sites] == [("elsewhere::double", 8, 8)]


def test_an_operator_of_another_library_without_a_kernel_for_the_cpu_fails_as_torch_npus_fallback_does():
    done = run(LIBRARY + "    torch.ops.elsewhere.nowhere(x)", sim=SIM)
    assert done.returncode != 0
    assert WARNING.format("elsewhere::nowhere") in done.stderr
    assert "Could not run 'elsewhere::nowhere' with arguments from the 'CPU' backend." in done.stderr


@pytest.mark.parametrize("operator", ["add", "mul", "matmul", "maximum"])
def test_operators_with_a_kernel_stay_on_the_card(operator: str, capfd: pytest.CaptureFixture[str]):
    x = torch.rand(4, 4).npu()
    getattr(torch, operator)(x, x)
    assert "CAUTION" not in capfd.readouterr().err
