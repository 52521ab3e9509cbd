"""`toprope run` of programs that fail because of an operator, or catch such an error: real processes with torch.

Holds `cli.reports.failure` from the program to the report.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.native, pytest.mark.process]


def run(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run this code with `toprope run` and these words; "program.py" is the last where there are none."""
    (folder / "program.py").write_text(textwrap.dedent(code))
    names = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "TORCH", "ASCEND", "RANK")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return subprocess.run(
        [sys.executable, "-m", "toprope", "run", "--chip", "910B3", *words],
        cwd=folder, env=kept, capture_output=True, text=True, timeout=280,
    )  # fmt: skip


def facts_of(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stderr.splitlines()[-1])


ALL_KINDS = """
    import torch, torch_npu

    def ones(*size, dtype=torch.float32):
        return torch.ones(*size, dtype=dtype, device="npu")

    def nested():
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="npu").to_padded_tensor(0)

    for attempt in (
        lambda: torch._masked_scale(ones(4), ones(4, dtype=torch.uint8), 1.0),
        lambda: torch.cummax(ones(4, dtype=torch.complex64), 0),
        lambda: ones(2, 2).to_sparse_csr(),
        lambda: ones(2, 2).to_mkldnn(),
        nested,
        lambda: torch.mm(ones(2, 2, dtype=torch.int32), ones(2, 2, dtype=torch.int32)),
        lambda: ones(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        lambda: ones(1, 2, 3, 4).to(memory_format=torch.channels_last),
        lambda: torch_npu.npu_swiglu(ones(4, dtype=torch.float64)),
        lambda: torch_npu.npu_matmul_compress_dequant,
        lambda: torch.npu.NPUPluggableAllocator(),
        lambda: torch.npu.nothing,
    ):
        try:
            attempt()
        except (RuntimeError, AttributeError) as error:
            print(str(error).splitlines()[0])
        else:
            print("nothing was raised")

    def step():
        return torch.histc(ones(4, dtype=torch.complex64), bins=4, min=0, max=3)

    try:
        step()
    except RuntimeError as error:
        raise ValueError("the step failed") from error
"""


def test_every_kind_of_lack_is_recorded_and_the_one_that_ended_the_program_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, ALL_KINDS, "--json", "program.py")
    assert done.returncode == 1
    assert "nothing was raised" not in done.stdout
    facts = facts_of(done)
    assert [(lack["name"], lack["reason"], lack["dtype"]) for lack in facts["lacks"]] == [
        ("aten::_masked_scale", "kernel", "float32"),
        ("aten::_cummax_helper", "dtype", "complex64"),
        ("aten::_to_sparse_csr", "layout", "float32"),
        ("aten::to_mkldnn", "layout", "float32"),
        ("aten::to_padded_tensor", "layout", "float32"),
        ("aten::mm", "refused", "int32"),
        ("aten::contiguous", "format", None),
        ("aten::_to_copy", "format", None),
        ("npu::npu_swiglu", "refused", "float64"),
        ("torch_npu.npu_matmul_compress_dequant", "name", None),
        ("torch.npu.NPUPluggableAllocator", "name", None),
        ("torch.npu.nothing", "name", None),
        ("aten::histc", "refused", "complex64"),
    ]
    failed = facts["failed"]
    assert (failed["name"], failed["dtype"], failed["card"]) == ("aten::histc", "complex64", "refuses")
    assert (failed["certain"], failed["rank"]) == (True, None)
    line = (tmp_path / "program.py").read_text().partition("torch.histc")[0].count("\n") + 1
    assert failed["place"] == f"{tmp_path}/program.py:{line}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "line"),
    [
        (
            "torch.cummax(x.to(torch.complex64), 0)",
            "an operator had no kernel here: aten::_cummax_helper (complex64), program.py:3; not known whether the card"
            " has one",
        ),
        (
            "torch.ones(1, 2, 3, 4, device='npu').contiguous(memory_format=torch.channels_last)",
            "an operator refused an argument: aten::contiguous, program.py:3; the card refuses it too (torch_npu)",
        ),
        (
            "torch.ones([1] * 9).npu().clone()",
            "an operator refused a tensor with that many dimensions: aten::copy_, program.py:3; the card refuses it too"
            " (aclnnInplaceCopy)",
        ),
        (
            "torch_npu.npu_rotary_mul(x.view(1, 1, 2, 2), x.view(1, 1, 2, 2), x)",
            "an operator refused an argument: npu::npu_rotary_mul, program.py:3; the card refuses it too",
        ),
        (
            "torch.nn.functional.embedding(torch.tensor([9]).npu(), x.view(4, 1)).sum().item()",
            "an operator read an index that no element has: aten::embedding, program.py:3; the card found it",
        ),
        ("torch_npu.npu_ifmr(x)", "a name is missing here: torch_npu.npu_ifmr, program.py:3; the"),
        ("from torch_npu import npu_ifmr", "a name is missing here: torch_npu.npu_ifmr, program"),
        (
            "import sys; exec('try: x.view(2, 2).to_sparse_csr()\\nexcept RuntimeError: sys.exit(1)')",
            "perhaps because an operator had no kernel here for sparse, nested or quantized tensors: aten::_to",
        ),
    ],
)
def test_the_report_names_what_ended_the_program(tmp_path: Path, code: str, line: str) -> None:
    done = run(tmp_path, f"import torch, torch_npu\nx = torch.ones(4, device='npu')\n{code}\n", "program.py")
    assert done.returncode == 1
    assert f"\n  failed        {line}" in done.stderr


def test_a_program_that_catches_the_error_did_not_fail_and_its_waits_have_places(tmp_path: Path) -> None:
    code = """
        import threading, torch
        x = torch.ones(64, device="npu")
        try:
            x.view(8, 8).to_sparse_csr()
        except NotImplementedError:
            pass

        class Double(torch.autograd.Function):
            @staticmethod
            def forward(context, a):
                return 2 * a

            @staticmethod
            def backward(context, gradient):
                return gradient * gradient.sum().item()

        Double.apply(x.clone().requires_grad_()).sum().backward()
        torch.ones(5).npu()
        x.nonzero()
        torch.npu.synchronize()
        total = x.sum()
        for step in range(800):
            total.item()
            if total > 0:
                x.cpu()
        thread = threading.Thread(target=total.item)
        thread.start()
        thread.join()
    """
    done = run(tmp_path, code, "--json", "program.py")
    assert done.returncode == 0, done.stderr
    facts = facts_of(done)
    assert facts["failed"] is None
    assert [lack["name"] for lack in facts["lacks"]] == ["aten::_to_sparse_csr"]
    places = facts["simulated"][0]["places"]
    assert places["estimated"]
    back = {(one["operation"], Path(one["file"]).name, one["line"]): one["times"] for one in places["copies_back"]}
    assert back.pop(("aten::_local_scalar_dense", "program.py", 16)) == 1
    loop = [
        ("aten::_local_scalar_dense", "program.py", 24),
        ("aten::_local_scalar_dense", "program.py", 25),
        ("aten::copy_ to the host", "program.py", 26),
    ]
    assert all(700 <= back[place] <= 900 for place in loop), back
    number = facts["simulated"][0]["copies"]["from_card"]["number"]
    assert abs(sum(one["times"] for one in places["copies_back"]) - number) <= 64
    waits = {(one["operation"], one["line"]) for one in places["synchronisations"]}
    assert waits >= {("aten::copy_ to the card", 19), ("aten::nonzero", 20), ("torch.npu.synchronize", 21)}


@pytest.mark.slow
def test_threads_backward_passes_and_finalizers_may_all_wait_for_the_card(tmp_path: Path) -> None:
    code = """
        import gc, threading, time, torch
        end = time.monotonic() + 3

        class Double(torch.autograd.Function):
            @staticmethod
            def forward(context, a):
                return 2 * a

            @staticmethod
            def backward(context, gradient):
                return gradient * gradient.sum().item()

        class Node:
            def __del__(self):
                self.tensor.item()

        def items():
            x = torch.ones(1, device="npu")
            while time.monotonic() < end:
                x.item()
                x.cpu()
                torch.npu.synchronize()

        def backward():
            w = torch.ones(8, device="npu", requires_grad=True)
            while time.monotonic() < end:
                Double.apply(w).sum().backward()

        def garbage():
            while time.monotonic() < end:
                node = Node()
                node.itself, node.tensor = node, torch.ones(1, device="npu")
                eval("torch.ones(1, device='npu').item()")

        def python():
            while time.monotonic() < end:
                pass

        threads = [threading.Thread(target=target) for target in (items, items, backward, garbage, python)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """
    done = run(tmp_path, code, "--json", "program.py")
    assert done.returncode == 0, done.stderr
    (card,) = facts_of(done)["simulated"]
    found = {(one["operation"], Path(one["file"]).name, one["line"]) for one in card["places"]["copies_back"]}
    assert ("aten::_local_scalar_dense", "program.py", 21) in found, found
    total = sum(one["times"] for one in card["places"]["copies_back"])
    assert total == pytest.approx(card["copies"]["from_card"]["number"], rel=0.2)


def test_of_several_ranks_the_first_that_failed_is_named(tmp_path: Path) -> None:
    code = """
        import os, time, torch
        x = torch.ones(4, device="npu")
        if os.environ["RANK"] == "1":
            try:
                x.view(2, 2).to_sparse_csr()
            finally:
                open("failed", "w").close()
        while not os.path.exists("failed"):
            time.sleep(0.01)
        torch.mm(x.int().view(2, 2), x.int().view(2, 2))
    """
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    done = run(tmp_path, code, "--count", "2", torchrun, "--standalone", "--nproc-per-node", "2", "program.py")
    assert done.returncode != 0
    line = (
        "rank 1: an operator had no kernel here for sparse, nested or quantized tensors: aten::_to_sparse_csr (float32)"
    )
    assert f"\n  failed        {line}, program.py:6; not known whether the card has one\n" in done.stderr
