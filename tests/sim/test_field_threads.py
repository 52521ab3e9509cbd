"""Public troubles of users that show only in whole processes, each named for its thread (issue).

Those that one process can show are in tests/sim/simulated/test_field_threads.py (and _310p), those of npu-smi in
tests/cli/test_npu_smi.py, those of pipelines in tests/flow/test_flow_threads.py (and _host), those of pictures in
tests/images/simulated/test_images_engine.py. The list at the end holds all of them together.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from toprope.visible_devices import visible_cards

pytestmark = [pytest.mark.native, pytest.mark.process]

TESTS = Path(__file__).resolve().parents[1]
FOREIGN = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "TOPROPE_TRACE", "PYTHON", "TORCH", "ASCEND", "PYTEST")


def run(folder: Path, code: str, *options: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    """A program in `toprope run`: how it ended, and the report."""
    (folder / "program.py").write_text(textwrap.dedent(code))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "run", "--json", *options, "program.py"],
        cwd=folder, env=kept | variables, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if not line.startswith("toprope: ")]  # a first run builds
    assert len(lines) == 1, done.stderr
    return done, json.loads(lines[0])


@pytest.mark.slow
def test_trinity_rft_618_a_mask_that_does_not_rise_shows_no_card_and_the_report_says_why(tmp_path: Path) -> None:
    """https://github.com/agentscope-ai/Trinity-RFT/pull/618: with 1,0 is_available() is False, and nobody says why."""
    code = "import torch; print(torch.npu.is_available(), torch.npu.device_count())"
    done, facts = run(tmp_path, code, "--chip", "910B3", "--count", "2", ASCEND_RT_VISIBLE_DEVICES="1,0")
    assert (done.returncode, done.stdout) == (0, "False 0\n")
    (card,) = facts["simulated"]
    assert card["visible_cards"] == 0
    assert card["masks"] == ["ASCEND_RT_VISIBLE_DEVICES=1,0 shows no card: numbers must rise, and 0 follows 1"]


@pytest.mark.slow
def test_verl_7507_a_machines_number_is_no_number_of_the_process(tmp_path: Path) -> None:
    """https://github.com/verl-project/verl/pull/7507: Ray gives card 5, the process sees 0 to 3, and gets 107001."""
    code = """
        import torch
        for card in (5, 4):
            try:
                torch.npu.set_device(card)
            except RuntimeError as error:
                print("107001" in str(error), "Check whether the device ID is valid." in str(error))
        torch.npu.set_device(1)  # what card 5 is called here
        print(torch.ones(2**20, device="npu").device)
    """
    mask = "4,5,6,7"
    done, facts = run(tmp_path, code, "--chip", "910B3", "--count", "8", ASCEND_RT_VISIBLE_DEVICES=mask)
    assert (done.returncode, done.stdout) == (0, "True True\nTrue True\nnpu:1\n")
    assert visible_cards(mask, 8).cards[1] == 5
    (card,) = facts["simulated"]
    assert [used["name"] for used in card["used_cards"]] == ["card 5"]


@pytest.mark.slow
def test_opencompass_1618_a_job_that_silently_ran_on_the_cpu_is_told_apart(tmp_path: Path) -> None:
    """https://github.com/open-compass/opencompass/pull/1618: no error at all, and the card did nothing."""
    code = """
        import torch
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Linear(4, 4).to(device)
        print(model(torch.ones(1, 4, device=device)).device.type)
    """
    done, facts = run(tmp_path, code, "--chip", "910B3")
    if done.stdout == "cuda\n":
        pytest.skip("this machine has CUDA, and the program uses it")
    assert (done.returncode, done.stdout) == (0, "cpu\n")
    (card,) = facts["simulated"]
    assert (card["used_cards"], card["operators"]["calls"]) == ([], 0)


PROJECT = {
    "model.py": """
        import torch
        import torch_npu

        def normalise(x, weight):
            return torch_npu.npu_rms_norm(x, weight, epsilon=1e-6)[0]

        def misspelt(x, weight):
            return torch_npu.npu_rmsnorm(x, weight)
    """,
    "test_model.py": """
        import torch
        import model

        def test_normalise():
            x = torch.randn(2, 8).npu()
            seen = model.normalise(x, torch.ones(8).npu())
            wanted = torch.nn.functional.rms_norm(x.cpu(), (8,), eps=1e-6)
            torch.testing.assert_close(seen.cpu(), wanted)

        def test_misspelt():
            model.misspelt(torch.randn(2, 8).npu(), torch.ones(8).npu())
    """,
}
MOCKS = """
    import sys
    from unittest.mock import MagicMock
    import torch
    sys.modules["torch_npu"] = MagicMock()
    torch.npu = MagicMock()
    torch.Tensor.npu = lambda self: self
"""


@pytest.mark.soak
def test_vllm_ascend_15578_the_plugin_in_place_of_mocks(tmp_path: Path) -> None:
    """https://github.com/vllm-project/vllm-ascend/pull/15578: their conftest makes torch_npu of mocks.

    The mock lets a name pass that torch_npu does not have, and cannot compute the one that it has; with the plugin and
    without the conftest it is the other way round, as on a card.
    """
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    conftest = tmp_path / "conftest.py"

    def outcomes(*options: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *options]
        done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=280)
        found = re.findall(r"^(PASSED|FAILED) test_model.py::(\w+)", done.stdout, re.MULTILINE)
        assert len(found) == 2, done.stdout + done.stderr
        return {name: outcome for outcome, name in found}

    conftest.write_text(textwrap.dedent(MOCKS))
    assert outcomes() == {"test_normalise": "FAILED", "test_misspelt": "PASSED"}
    conftest.unlink()
    assert outcomes("--npu", "910B3") == {"test_normalise": "PASSED", "test_misspelt": "FAILED"}


# Every thread in which the simulated card or a pipeline has a part and that can be tried without a card.
THREADS = [
    "https://github.com/agentscope-ai/Trinity-RFT/pull/618",
    "https://github.com/verl-project/verl/issues/6756",
    "https://github.com/huggingface/diffusers/issues/10428",
    "https://github.com/vllm-project/vllm-omni/issues/4911",
    "https://github.com/hiyouga/LlamaFactory/issues/4165",
    "https://github.com/vllm-project/vllm-ascend/issues/6490",
    "https://github.com/open-compass/opencompass/pull/1618",
    "https://github.com/hiyouga/LlamaFactory/issues/5674",
    "https://github.com/pytorch/pytorch/issues/61654",
    "https://github.com/pytorch/pytorch/issues/83817",
    "https://github.com/torch-spyre/torch-spyre/issues/244",
    "https://github.com/vllm-project/vllm-ascend/pull/15578",
    "https://github.com/huggingface/diffusers/pull/14786",
    "https://github.com/verl-project/verl/pull/7507",
    "https://github.com/Ascend/pytorch/issues/67",
    "https://github.com/vllm-project/vllm-ascend/issues/4502",
    "https://github.com/vllm-project/vllm-omni/issues/5211",
    "https://github.com/vllm-project/vllm-omni/issues/261",
    "https://github.com/AUTOMATIC1111/stable-diffusion-webui/pull/14801",
    # pictures
    "https://github.com/Tencent-Hunyuan/HunyuanDiT/issues/226",
    "https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/301",
    # pipelines of models
    "https://github.com/ray-project/ray/issues/46284",
    "https://github.com/ray-project/ray/issues/47790",
    "https://github.com/ray-project/ray/issues/47285",
    "https://github.com/ray-project/ray/issues/50381",
    "https://github.com/vllm-project/vllm/issues/12747",
    "https://github.com/ray-project/ray/issues/45306",
    "https://github.com/ray-project/ray/issues/48272",
    "https://github.com/ray-project/ray/issues/51574",
    "https://github.com/ray-project/ray/issues/57098",
    "https://github.com/ray-project/ray/issues/47590",
    "https://github.com/triton-inference-server/server/issues/343",
    "https://github.com/triton-inference-server/server/issues/4809",
    "https://github.com/triton-inference-server/server/issues/3373",
    "https://github.com/triton-inference-server/server/issues/5431",
    "https://github.com/triton-inference-server/server/issues/3459",
    "https://github.com/triton-inference-server/server/issues/3483",
    "https://github.com/triton-inference-server/server/issues/8597",
    "https://github.com/triton-inference-server/server/issues/4932",
    "https://github.com/triton-inference-server/fastertransformer_backend/issues/155",
    "https://github.com/pytorch/pytorch/issues/159942",
    "https://github.com/pytorch/pytorch/issues/156618",
    "https://github.com/pytorch/pytorch/issues/1338",
    "https://github.com/NVIDIA/DALI/issues/4590",
    "https://github.com/NVIDIA/DALI/issues/1506",
    "https://github.com/nvidia-holoscan/holoscan-sdk/issues/18",
    "https://github.com/nvidia-holoscan/holoscan-sdk/issues/43",
    "https://github.com/apache/beam/issues/26687",
    "https://github.com/joblib/joblib/issues/812",
    "https://github.com/TexasInstruments/edgeai-gst-plugins/issues/182",
    "https://github.com/vllm-project/vllm-ascend/issues/3133",
]


@pytest.mark.parametrize("url", THREADS)
def test_every_thread_has_a_test_that_names_it(url: str) -> None:
    """By its address in a test, and by its number in the test's name."""
    number = url.rpartition("/")[2]
    files = TESTS.rglob("test_*.py")
    tests = [
        test
        for file in files
        for test in re.split(r"^(?=def test_)", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        if re.search(rf"{re.escape(url)}\b", test.partition("THREADS = ")[0])
    ]
    assert tests, f"no test names {url}"
    assert number == "14801" or any(re.match(rf"def test_\w*_{number}_", test) for test in tests)
