"""torch.distributed between two processes, each with a simulated card: the backend `hccl`.

Holds src/toprope/sim/distributed against values computed from both processes' tensors. The cases are functions in
tests/helpers/distributed_*.py. A launch runs many of them in one pair of processes, and each case is a test here. By
hand, with MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE set for each of two processes, in one line:

    TOPROPE_SIM=910B3x2 python tests/helpers/distributed_worker.py FOLDER 'backend="hccl"'
        distributed_cases:case_barrier
"""

import ast
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.native, pytest.mark.process]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "helpers"
LIMIT = 200
"""Seconds for one launch; a first one may have to build the card."""

FOREIGN = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "PYTEST", "TORCH", "ASCEND", "RANK", "WORLD", "MASTER")


def cases(module: str) -> list[str]:
    """The cases of a module, read without importing it."""
    tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    names = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    return [f"{module}:{name}" for name in names if name.startswith("case_")]


def kept_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def worker(folder: str, init: str, wanted: tuple[str, ...]) -> list[str]:
    return [str(FOLDER / "distributed_worker.py"), folder, init, *wanted]


def run_all(commands: list[tuple[list[str], dict[str, str]]]) -> str:
    """Run processes beside each other, end those that take too long, and give what they printed."""
    settings: dict[str, Any] = {"cwd": FOLDER, "text": True, "start_new_session": True}
    settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    running = [subprocess.Popen(command, env=environment, **settings) for command, environment in commands]
    printed = []
    for process in running:
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            for other in running:
                if other.poll() is None:
                    os.killpg(other.pid, signal.SIGKILL)
            output = f"ended after {LIMIT} s\n{process.communicate()[0]}"
        printed.append(f"exit status {process.returncode}\n{output}")
    return "\n".join(printed)


def outcomes(folder: str, wanted: tuple[str, ...], printed: str) -> dict[str, str]:
    """What went wrong in each case, "" where nothing did."""
    wrong = dict.fromkeys(wanted, "")
    for rank in (0, 1):
        path = Path(folder) / f"{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        told = {case: text for case, text, _ in map(json.loads, lines)}
        for case in wanted:
            text = told.get(case, f"not run, or not to its end\n{printed}")
            wrong[case] += f"\nrank {rank}: {text}" if text else ""
    return wrong


@functools.cache
def launch(init: str, wanted: tuple[str, ...], sim: str = "910B3x2,refuse=off", **variables: str) -> dict[str, str]:
    """Run cases in two processes, and give what went wrong in each."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with tempfile.TemporaryDirectory() as folder:
        shared = kept_environment() | variables | meeting | {"TOPROPE_SIM": sim}
        command = [sys.executable, *worker(folder, init, wanted)]
        printed = run_all([(command, shared | {"RANK": str(rank)}) for rank in (0, 1)])
        return outcomes(folder, wanted, printed)


@functools.cache
def launch_with_torchrun(wanted: tuple[str, ...]) -> tuple[dict[str, str], str]:
    """Run cases with `toprope run ... torchrun`, and give what went wrong in each, and what was printed."""
    torchrun = Path(sys.executable).with_name("torchrun")
    run = [sys.executable, "-m", "toprope", "run", "--json", "--chip", "910B3", "--count", "2"]
    with tempfile.TemporaryDirectory() as folder:
        run += [str(torchrun), "--master-port", str(free_port()), "--nproc-per-node", "2"]
        init = 'device_id=torch.device("npu", rank)'
        printed = run_all([(run + worker(folder, init, wanted), kept_environment())])
        return outcomes(folder, wanted, printed), printed


def check(case: str, wrong: dict[str, str]) -> None:
    if wrong[case]:
        pytest.fail(f"{case}{wrong[case]}", pytrace=False)


COLLECTIVES = [*cases("distributed_moves"), *cases("distributed_reductions"), *cases("distributed_cases")]
TRAINING = cases("distributed_training")
REFUSALS = cases("distributed_refusals")
FUSED = tuple(cases("distributed_fused"))

SYNCHRONOUS = (
    "with_a_time_limit", "one_after_the_other", "does_not_come", "the_backend_of_a_group", "serves_several_groups",
    "serve_the_host",
)  # fmt: skip
"""What does not go with torch's checks, which wait in the call and stand in front of the backend, or with gloo."""

CHECKED = [case for case in COLLECTIVES if not case.endswith(SYNCHRONOUS)]
FEW = (
    "distributed_moves:case_all_gather_of_different_sizes",
    "distributed_reductions:case_reduce_scatter",
    "distributed_cases:case_barrier",
    "distributed_cases:case_errors",
)
LIBRARIES = tuple(cases("distributed_libraries"))
BESIDE_GLOO = (*cases("distributed_hosts"), *FEW)
RUN = (
    *REFUSALS,
    *cases("distributed_facade"),
    "distributed_training:case_ddp",
    "distributed_training:case_fully_sharded",
)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 30)
@pytest.mark.parametrize("case", [*COLLECTIVES, *TRAINING])
def test_two_processes(case: str) -> None:
    check(case, launch('backend="hccl"', (*COLLECTIVES, *TRAINING)))


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 30)
@pytest.mark.parametrize("case", FUSED)
def test_operators_that_communicate(case: str) -> None:
    check(case, launch('backend="hccl"', FUSED))


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 30)
@pytest.mark.parametrize("case", RUN)
def test_torchrun_on_the_default_backend(case: str) -> None:
    check(case, launch_with_torchrun(RUN)[0])


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 30)
def test_the_report_of_torchrun_names_both_cards() -> None:
    wrong, printed = launch_with_torchrun(RUN)
    assert not any(wrong.values())
    (line,) = [line for line in printed.splitlines() if line.startswith('{"device"')]
    facts = json.loads(line)
    assert facts["exit_status"] == 0
    assert [card["name"] for card in facts["simulated"][0]["used_cards"]] == ["npu:0", "npu:1"]


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 30)
@pytest.mark.parametrize("case", BESIDE_GLOO)
def test_beside_gloo_with_torchs_own_checks(case: str) -> None:
    check(case, launch('backend="cpu:gloo,npu:hccl"', BESIDE_GLOO, TORCH_DISTRIBUTED_DEBUG="DETAIL"))


@pytest.mark.soak
@pytest.mark.timeout(LIMIT + 30)
@pytest.mark.parametrize("case", LIBRARIES)
def test_torchs_own_libraries(case: str) -> None:
    check(case, launch('backend="cpu:gloo,npu:hccl"', LIBRARIES))


@pytest.mark.soak
@pytest.mark.timeout(LIMIT + 30)
@pytest.mark.parametrize("case", CHECKED)
def test_everything_with_torchs_own_checks(case: str) -> None:
    check(case, launch('backend="cpu:gloo,npu:hccl"', tuple(CHECKED), TORCH_DISTRIBUTED_DEBUG="DETAIL"))


ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = torch.utils.data.DataLoader(torch.arange(64.0).reshape(16, 4), batch_size=4)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for batch in batches:
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
losses = accelerator.gather(loss.detach()[None])
print(accelerator.process_index, accelerator.device, accelerator.distributed_type, type(model).__name__, len(losses))
accelerator.end_training()
"""


@pytest.mark.soak
@pytest.mark.timeout(LIMIT + 30)
def test_accelerate_chooses_hccl_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(ACCELERATE)
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--master-port", str(free_port())]
    run = [sys.executable, "-m", "toprope", "run", "--chip", "910B3", "--count", "2", *torchrun]
    printed = run_all([([*run, "--nproc-per-node", "2", str(tmp_path / "train.py")], kept_environment())])
    for rank in (0, 1):
        assert f"{rank} npu:{rank} DistributedType.MULTI_NPU DistributedDataParallel 2" in printed


@pytest.mark.soak
@pytest.mark.timeout(10 * (LIMIT + 30))
def test_many_times() -> None:
    for number in range(10):
        wrong = launch('backend="hccl"', (*COLLECTIVES, *TRAINING), NUMBER=str(number))
        assert not any(wrong.values()), "\n".join(wrong.values())
