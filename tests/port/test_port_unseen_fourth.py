"""What a fourth round of readers found in repositories that the port had never seen: one test each, by what broke."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from toprope.port import port
from toprope.port.files.kinds import kind_of
from toprope.port.files.text import port_text
from toprope.port.project.context import Context
from toprope.port.report.summary import text as report_of
from toprope.port.scan import find, port_files
from toprope.support.replacements import for_kernels


def ported(text, path="a.py", **given):
    """The program afterwards; a second run must change nothing."""
    done = port(dedent(text).strip("\n").encode() + b"\n", path, **given)
    assert done.skipped == ""
    assert port(done.after, path, **given).after == done.after
    return done.after.decode()


def project(folder, **files):
    """The files of a project after the port, by their names."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(dedent(text).strip("\n") + "\n")
    return {Path(each.path).stem: each for each in port_files(find([folder]))}


# Tests of the ported program

ASKED_IN_TESTS = {
    "nothing of it is converted": """
        import pytest, torch

        @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
        def test_plugin():
            run_plugin()
        """,
    "a name says that CUDA is needed": """
        import pytest, torch

        @pytest.mark.parametrize("use_cuda_graphs", [True, False])
        def test_forward(use_cuda_graphs):
            if use_cuda_graphs and not torch.cuda.is_available():
                pytest.skip("no GPU")
            model = make().to("cuda")
            Runner(model, use_cuda_graph=use_cuda_graphs)
        """,
    "it imports a plug-in": """
        import pytest, torch

        @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
        def test_plugin():
            import openequivariance
            make().cuda()
        """,
    "another function is asked to use CUDA": """
        import unittest, torch

        class Test(unittest.TestCase):
            def test_cuda(self):
                if torch.cuda.is_available():
                    x = torch.ones(2).cuda()
                    self.check(x, cuda=True)
        """,
    "the mark has a name": """
        import pytest, torch

        needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

        @needs_cuda
        def test_plugin():
            run_plugin()
        """,
}


@pytest.mark.parametrize("text", ASKED_IN_TESTS.values(), ids=ASKED_IN_TESTS)
def test_a_test_that_was_skipped_without_cuda_ran_on_other_devices(text) -> None:
    after = ported(text, "tests/test_a.py")
    assert "torch.cuda.is_available()" in after


def test_a_test_whose_code_is_converted_runs_on_other_devices() -> None:
    before = """
        import pytest
        import torch

        needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

        @needs_gpu
        def test_move():
            x = torch.ones(2).cuda()
            assert x.is_cuda

        def test_where(device="cpu"):
            device = "cuda" if torch.cuda.is_available() else "cpu"
            assert torch.ones(2).to(device).sum() == 2
        """
    after = ported(before, "tests/test_a.py")
    assert "torch.cuda" not in after
    assert "skipif(not portable.is_available()" in after
    assert "assert portable.is_accelerator(x)" in after


def test_tests_of_a_project_with_an_extension_were_opened_for_its_kernels() -> None:
    before = """
        import pytest, torch

        @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
        def test_fast():
            make(strategy="fused").cuda()
        """
    context = Context(extensions=frozenset({"ops"}))
    assert "skipif(not torch.cuda" in ported(before, "tests/test_a.py", context=context)
    assert "skipif(not portable" in ported(before, "tests/test_a.py")


def test_a_file_with_the_name_of_a_test_that_is_none_is_converted_as_a_program() -> None:
    before = """
        import torch

        if torch.cuda.is_available():
            run_model(make_model())
            torch.cuda.synchronize()
        """
    assert "portable.is_available()" in ported(before, "test_net.py")


@pytest.mark.parametrize(
    "line",
    [
        'model.device = torch.device("cuda")',
        'assert model.device != torch.device("cuda")',
        'for device in (torch.device("cpu"), torch.device("cuda")): run(device)',
        'devices = [torch.device("cpu"), torch.device("cuda")]',
    ],
)
def test_a_device_that_nothing_goes_to_became_the_cpu_in_a_test(line) -> None:
    before = f"""
        import pytest
        import torch

        def test_warns(model):
            {line}
            with pytest.warns(UserWarning):
                model.check()
        """
    assert "portable" not in ported(before, "tests/test_a.py")


def test_the_device_of_a_decorator_of_tests_became_the_cpu() -> None:
    before = """
        import unittest

        @expand(device="cuda")
        class TestKernels(unittest.TestCase):
            pass
        """
    assert "portable" not in ported(before, "tests/test_a.py")


def test_the_places_that_stay_in_a_test_are_one_line(tmp_path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "main.py").write_text("import torch\n")
    (tmp_path / "tests" / "test_a.py").write_text(
        "import pytest, torch\n\n@pytest.mark.skipif(not torch.cuda.is_available(), reason='')\ndef test_a():\n"
        "    run()\n\n@pytest.mark.skipif(not torch.cuda.is_available(), reason='')\ndef test_b():\n    run()\n"
    )
    said = report_of("x", list(port_files(find([tmp_path]))))
    assert said.count("test_a.py:") == 1
    assert "2 places stay in this test" in said
    assert "lines 3, 7" in said


PATCHES = {
    "mock.patch": '@mock.patch("torch.cuda.is_available", return_value=True)\ndef test_a(_):\n    pick()',
    "monkeypatch": "def test_a(monkeypatch):\n    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)",
    "the name of another module": "def test_a(monkeypatch):\n    monkeypatch.setattr('a.torch.cuda.is_available', f)",
    "object": "def test_a(mocker):\n    mocker.patch.object(torch.cuda, 'is_available', return_value=True)",
    "multiple by name": "@mock.patch.multiple('torch.cuda', is_available=f)\ndef test_a():\n    pass",
    "multiple": "@mock.patch.multiple(torch.cuda, is_available=f)\ndef test_a():\n    pass",
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_a_name_that_tests_replace_was_not_asked_any_more(tmp_path, patch) -> None:
    found = project(
        tmp_path,
        a="""
        import torch

        def pick():
            return "cuda" if torch.cuda.is_available() else "cpu"

        def count():
            return torch.cuda.device_count()
        """,
        test_a=f"from unittest import mock\nimport torch\nfrom a import pick\n\n{dedent(patch)}",
    )
    after = found["a"].after.decode()
    assert '"cuda" if torch.cuda.is_available() else "cpu"' in after
    assert "portable.device_count()" in after
    held = [each.held_back for each in found["a"].findings if each.held_back]
    assert any("which is replaced in test_a, line" in each for each in held)


def test_a_function_of_torch_that_a_test_replaces_got_other_arguments(tmp_path) -> None:
    found = project(
        tmp_path,
        a="""
        import torch

        def load(path):
            return torch.load(path)
        """,
        test_a="""
        from unittest import mock
        from a import load

        @mock.patch("torch.load")
        def test_load(read):
            load("a.pt")
            read.assert_called_once_with("a.pt")
        """,
    )
    assert b"map_location" not in found["a"].after


def test_a_program_that_replaces_a_name_itself_was_not_followed() -> None:
    before = """
        import torch

        torch.cuda.is_available = lambda: False
        device = "cuda" if torch.cuda.is_available() else "cpu"
        """
    assert "portable" not in ported(before)


# Conditions


@pytest.mark.parametrize(
    "test",
    [
        'device.type == "cuda" and not torch.cuda.is_available()',
        'device.type == torch.device("cuda").type and not torch.cuda.is_available()',
        'not torch.cuda.is_available() and device.type == "cuda"',
        'not (torch.cuda.is_available() or device.type != "cuda")',
    ],
)
def test_the_way_out_for_a_device_of_cuda_was_left_where_another_accelerator_is(test) -> None:
    before = f"""
        import torch

        def get_device(device):
            device = torch.device(device)
            if {test}:
                return torch.device("cpu")
            return device
        """
    assert "portable" not in ported(before)


def test_two_questions_with_one_answer_are_converted() -> None:
    before = """
        import torch

        def run(device):
            if torch.cuda.is_available() and device.type == "cuda":
                torch.cuda.synchronize()
        """
    assert "if portable.is_available() and portable.is_accelerator(device):" in ported(before)


def test_a_move_without_a_condition_went_elsewhere_than_the_model() -> None:
    before = """
        import torch

        def main(model, args):
            if torch.cuda.is_available():
                model = torch.nn.DataParallel(model).cuda()
            criterion = torch.nn.MSELoss().cuda(args.gpu)
            images = torch.ones(3).to("cuda")
            return model, criterion, images
        """
    done = port(dedent(before).encode(), "a.py")
    assert b"portable" not in done.after
    assert "places stay: it decides where tensors are, as line 5 does" in report_of("x", [done])


def test_moves_behind_a_question_that_is_converted_are_converted_next_to_one_that_stays() -> None:
    before = """
        import torch

        def main(model):
            if torch.cuda.is_available():
                model = torch.nn.DataParallel(model).cuda()
            return model

        def match(x, y):
            if x.is_cuda:
                y = y.cuda()
            return y
        """
    after = ported(before)
    assert "y = y.to(portable.device())" in after
    assert "DataParallel(model).cuda()" in after


def test_storages_of_cuda_were_read_where_there_is_none_by_the_other_branch() -> None:
    before = """
        import contextlib, io, torch

        @contextlib.contextmanager
        def on_cpu_without_cuda():
            if torch.cuda.is_available():
                yield
                return
            kept = torch.storage._load_from_bytes
            torch.storage._load_from_bytes = lambda b: torch.load(io.BytesIO(b), map_location="cpu")
            yield
            torch.storage._load_from_bytes = kept
        """
    assert "portable" not in ported(before)


LOADED = """
    import importlib

    import torch
    from torch.nn import functional as F

    {first}

    class Func(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            global norm_cuda
            norm_cuda = importlib.import_module("norm_cuda")
            return norm_cuda.forward(x, w)

    class Norm(torch.nn.Module):
        def forward(self, x):
            if not x.is_cuda:
                return F.layer_norm(x, (4,))
            return Func.apply(x, self.w)
    """


@pytest.mark.parametrize("first", ["norm_cuda = None", ""])
def test_the_version_in_torch_was_not_taken_where_an_extension_is_imported_by_a_call(first) -> None:
    assert "portable" not in ported(LOADED.format(first=first))


def test_an_error_about_graphs_of_cuda_came_too_late() -> None:
    before = """
        import torch

        class Calculator:
            def __init__(self, use_cuda_graph):
                if not torch.cuda.is_available() and use_cuda_graph:
                    raise ValueError("CUDA graphs are only available if CUDA is")
        """
    assert "portable" not in ported(before)


def test_an_early_return_of_a_constructor_switches_off_the_other_methods() -> None:
    before = """
        import torch
        from torch.nn.parallel import parallel_apply, replicate

        class Parallel(torch.nn.Module):
            def __init__(self, module):
                if not torch.cuda.is_available():
                    self.module, self.device_ids = module, []
                    return
                self.module = module.cuda()

            def forward(self, x):
                if not self.device_ids:
                    return self.module(x)
                return parallel_apply(replicate(self.module, self.device_ids), x)
        """
    after = ported(before)
    assert "if not torch.cuda.is_available():" in after
    assert "module.cuda()" in after


def test_a_build_that_is_no_setup_py_asked_for_the_device_in_use() -> None:
    before = """
        import torch
        from torch.utils.ffi import create_extension

        sources = ["ops.c"]
        if torch.cuda.is_available():
            sources += ["ops_cuda.c"]
        else:
            raise ValueError("CUDA is not available")
        ffi = create_extension("_ext.ops", sources=sources, with_cuda=True)
        """
    assert "portable" not in ported(before, "build.py")


def test_a_module_that_ffi_builds_is_an_extension() -> None:
    before = """
        import torch
        from ._ext import ops as _backend

        class Func(torch.autograd.Function):
            @staticmethod
            def forward(ctx, input):
                if not input.is_cuda:
                    raise NotImplementedError
                _backend.ops_cuda_forward(input)
                return input
        """
    assert "portable" not in ported(before)


def test_an_option_was_resolved_in_a_comparison_of_a_file_that_says_input() -> None:
    before = """
        import argparse, torch

        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda")
        args = parser.parse_args()
        input = torch.ones(2).to(args.device)
        if args.device == "cuda":
            torch.cuda.synchronize()
        """
    after = ported(before)
    assert 'if portable.is_named(portable.resolve(args.device), "cuda"):' in after


# What torch takes along, and what it loads


def test_a_package_of_torch_could_not_be_made_of_ported_modules(tmp_path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "__init__.py").write_text(
        "import torch\n\nclass Net:\n    def place(self):\n        return torch.device('cuda')\n"
    )
    (tmp_path / "pack.py").write_text(
        "from torch.package import PackageExporter\nfrom net import Net\n\n"
        "with PackageExporter('net.pt') as exporter:\n"
        "    exporter.intern('net.**')\n    exporter.save_pickle('net', 'net.pkl', Net())\nprint('made')\n"
    )
    for vendored in (False, True):
        runtime = (lambda path: "toprope_portable") if vendored else None
        folder = tmp_path / f"ported{vendored}"
        (folder / "net").mkdir(parents=True)
        for each in port_files(find([tmp_path / "net", tmp_path / "pack.py"]), runtime=runtime):
            (folder / Path(each.path).relative_to(tmp_path)).write_bytes(each.after)
        if vendored:
            source = Path(sys.modules["toprope"].__file__).parent / "device" / "_portable_runtime.py"
            (folder / "toprope_portable.py").write_bytes(source.read_bytes())
        assert b"portable.device()" in (folder / "net" / "__init__.py").read_bytes()
        made = subprocess.run([sys.executable, "pack.py"], cwd=folder, capture_output=True, text=True, check=False)
        assert made.stdout == "made\n", made.stderr


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("torch.load(path)", "TR057"),
        ("torch.load(path, weights_only=True)", "TR057"),
        ("torch.load(path, weights_only=False)", "TR057b"),
        ("torch.load(path, weights_only=whole)", "TR057b"),
    ],
)
def test_a_file_of_torchscript_was_said_to_load_as_before(call, code) -> None:
    done = port(f"import torch\n\nmodel = {call}\n".encode(), "a.py")
    assert [each.rule.code for each in done.findings] == [code]
    assert b"map_location=portable.map_location" in done.after


def test_an_assertion_on_a_tensor_of_cuda_stopped_the_cpu(monkeypatch) -> None:
    from toprope.device import _portable_runtime as runtime

    monkeypatch.setattr(runtime, "_chosen", lambda: torch.device("cpu"))
    assert runtime.is_tensor(torch.ones(2), torch.float32)
    assert not runtime.is_tensor(torch.ones(2), torch.int64)
    monkeypatch.setattr(runtime, "_chosen", lambda: torch.device("meta"))
    assert not runtime.is_tensor(torch.ones(2), torch.float32)


# What was not reported, or in words that help nobody


def codes(text, name):
    done = port_text(dedent(text).strip("\n").encode() + b"\n", name, kind_of(name))
    return [(each.rule.code, each.line) for each in done.findings]


def test_files_that_ask_for_cuda_said_nothing() -> None:
    cog = 'build:\n  gpu: true\n  cuda: "11.1"\n  python_packages:\n    - "torch==1.10.0"\n'
    assert codes(cog, "cog.yaml") == [("TR107", 2), ("TR107", 3), ("TR106c", 5)]
    jobs = "srun --gres=gpu:1 python a.py\nsbatch --gpus-per-node=2 a.sh\nnvcc -c a.cu\n# nvcc -c b.cu\n"
    assert codes(jobs, "run.sh") == [("TR107", 1), ("TR107", 2), ("TR108a", 3)]
    index = '[[tool.uv.index]]\nname = "cu126"\nurl = "https://download.pytorch.org/whl/cu126"\n'
    assert codes(index, "pyproject.toml") == [("TR106a", 3)]
    conda = "dependencies:\n  - pytorch::cuda100\n  - dgl-cu102\n"
    assert codes(conda, "environment.yml") == [("TR106", 2), ("TR106", 3)]


@pytest.mark.parametrize("line", ["torch>=1.4", "torch>=1.7,<3"])
def test_a_lower_bound_that_toprope_raises_itself_was_reported(line) -> None:
    assert codes(line, "requirements.txt") == []


@pytest.mark.parametrize(
    ("kernels", "wanted"),
    [
        ("query_ball_point_kernel_fast", "BallQuery"),
        ("psamask_collect_forward", "PSAMask"),
        ("roipool3d_forward", "roipoint_pool3d"),
        ("roiaware_pool3d_kernel", "roiaware_pool3d"),
        ("nms_normal_kernel iou3d", "nms3d_normal"),
    ],
)
def test_nothing_was_known_to_replace_a_kernel_of_the_vendors_lists(kernels, wanted) -> None:
    assert any(wanted in row.instead for row in for_kernels(kernels))


def test_attention_was_said_to_replace_other_kernels_of_flash_attn() -> None:
    before = b"from flash_attn.layers.rotary import apply_rotary_emb\nfrom flash_attn import flash_attn_varlen_func\n"
    first, second = port(before, "a.py").findings
    assert "npu_rotary_mul" in first.message
    assert "npu_fusion_attention" not in first.message
    assert "npu_fusion_attention" in second.message


def test_the_constant_of_nccl_was_compared_with_another_backend() -> None:
    before = """
        import torch.distributed as dist

        def move(x):
            return x.cuda() if dist.get_backend() == dist.Backend.NCCL else x
        """
    assert 'dist.get_backend() == portable.dist_backend("nccl")' in ported(before)


def test_the_number_of_a_tensors_device_is_minus_one_on_the_cpu() -> None:
    before = """
        import torch

        def place(anchor, box, **kwargs):
            other = torch.eye(3, device=box.get_device())
            return anchor.to(box.get_device()), torch.device(kwargs["local_rank"]), other
        """
    after = ported(before)
    assert "anchor.to(portable.device(box.get_device()))" in after
    assert "device=portable.device(box.get_device())" in after
    assert 'portable.device(kwargs["local_rank"])' in after


def test_a_method_get_device_of_the_program_is_not_a_number() -> None:
    before = """
        import torch

        class Holder:
            def get_device(self):
                return self.where

        def place(x, holder):
            return x.to(holder.get_device())
        """
    assert "portable" not in ported(before)


def test_a_place_inside_of_a_text_that_is_replaced_had_a_line_of_its_own() -> None:
    before = b"import torch\n\nstate = torch.load(path, map_location=lambda storage, loc: storage.cuda())\n"
    done = port(before, "a.py")
    assert [each.rule.code for each in done.findings] == ["TR059"]


def test_one_condition_was_three_lines() -> None:
    before = """
        import pytest, torch

        @pytest.mark.parametrize("device", ["cpu", "cuda"])
        def test_a(device):
            if device == "cuda" and not torch.cuda.is_available():
                pytest.skip("no GPU")

        @pytest.mark.parametrize("device", ["cpu", "cuda"])
        def test_b(device):
            if device == "cuda" and not torch.cuda.is_available():
                pytest.skip("no GPU")
        """
    done = port(dedent(before).encode(), "test_a.py")
    assert sorted((each.rule.code, each.line) for each in done.findings) == [("TR001", 6), ("TR001", 11), ("TR101", 4)]
    assert done.findings[0].message.endswith("also in line 9")


def test_the_types_that_an_operator_is_for_are_no_devices() -> None:
    before = b"import torch\n\n@torch.library.custom_op('a::b', device_types=['cpu', 'cuda'])\ndef b(x): ...\n"
    assert port(before, "a.py").findings == []


def test_a_trainer_that_gets_its_gpus_from_a_table_was_not_reported() -> None:
    before = b"import pytorch_lightning as pl\n\nconfig['gpus'] = 1\ntrainer = pl.Trainer(**config)\n"
    assert [each.rule.code for each in port(before, "a.py").findings] == ["TR104a"]


def test_a_mode_to_compile_with_was_only_said_to_be_reported() -> None:
    (found,) = port(b"import torch\n\ntorch.compile(f, mode='max-autotune')\n", "a.py").findings
    assert "give the mode on CUDA alone" in found.said


def test_a_program_that_no_test_can_reach_stayed_for_a_test(tmp_path) -> None:
    found = project(
        tmp_path,
        main="import torch\n\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'\nprint(device)\n",
        test_a="""
        from unittest import mock

        @mock.patch("torch.cuda.is_available")
        def test_a(_):
            pass
        """,
    )
    assert b"portable.name()" in found["main"].after


def test_the_old_constructor_next_to_a_default_type_of_cuda_was_not_reported(tmp_path) -> None:
    """It is on the CPU with another device, and every ray of a NeRF stops there."""
    found = project(
        tmp_path,
        main="import torch, render\n\ntorch.set_default_tensor_type('torch.cuda.FloatTensor')\n",
        render="import torch\n\nfar, near = torch.Tensor([1e10]), torch.Tensor(3, device='cuda')\n",
    )
    assert [each.rule.code for each in found["render"].findings] == ["TR014a", "TR010"]


@pytest.mark.parametrize(
    ("device", "given", "wanted"),
    [
        ("cpu", "gloo", False), ("cpu", "nccl", False), ("xpu", "nccl", True), ("xpu", "xccl", True),
        ("xpu", "gloo", False), ("cuda", "nccl", True), ("cuda", "gloo", False),
    ],
)  # fmt: skip
def test_gloo_was_taken_for_nccl_on_the_cpu(monkeypatch, device, given, wanted) -> None:
    from toprope.device import _portable_runtime as portable

    monkeypatch.setattr(portable, "_chosen", lambda: torch.device(device))
    after = ported("def is_fast(backend):\n    return backend == 'nccl'\n")
    names = {"portable": portable}
    exec(after.replace("from toprope.device import portable\n", ""), names)
    assert names["is_fast"](given) is wanted


def test_the_options_of_nccl_were_opened_by_another_backend() -> None:
    before = """
        import torch.distributed as dist

        def options(group):
            if dist.get_backend(group) == "nccl":
                return dist.ProcessGroupNCCL.Options()
            return None
        """
    assert "portable" not in ported(before)


def test_a_number_that_is_stored_in_an_array_became_a_device() -> None:
    before = """
        import numpy as np
        import torch

        class Crop:
            def __init__(self):
                self.device = torch.cuda.current_device()
                self.index = np.zeros(1, dtype=int)
                self.index[0] = self.device
        """
    assert "portable.device(" not in ported(before)


@pytest.mark.parametrize(
    "use", ["faiss.Kmeans(8, 8, gpu=torch.cuda.device_count() > 0)", "faiss.Kmeans(8, 8, gpu=use_gpu)"]
)
def test_an_answer_was_given_to_a_package_that_knows_cuda_alone(use) -> None:
    before = f"""
        import faiss, torch

        use_gpu = torch.cuda.device_count() > 0
        kmeans = {use}
        """
    after = ported(before)
    assert f"kmeans = {use}" in after
    assert ("use_gpu = torch.cuda" in after) == ("gpu=use_gpu" in use)


def test_a_module_that_imports_an_extension_was_imported_on_other_devices(tmp_path) -> None:
    found = project(
        tmp_path,
        fast="from ._ext import nms\n\ndef run(x):\n    return nms.run(x)\n",
        wrapper="import torch\n\nif torch.cuda.is_available():\n    from fast import run\n",
    )
    assert b"portable" not in found["wrapper"].after


def test_the_mark_of_a_parameter_went_without_the_parameter() -> None:
    before = """
        import pytest, torch

        @pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available()))])
        def device(request):
            return request.param

        @pytest.mark.skipif(torch.cuda.device_count() < 1, reason="")
        def test_group(group_of_nccl):
            group_of_nccl.reduce(torch.ones(2).cuda())
        """
    after = ported(before, "conftest.py")
    assert "torch.cuda.is_available()" in after
    assert "torch.cuda.device_count()" in after


def test_a_class_that_a_test_replaces_was_called_by_another_name(tmp_path) -> None:
    found = project(
        tmp_path,
        engine="from torch.amp import autocast\n\ndef run(f):\n    with autocast('cuda', enabled=True):\n        f()\n",
        test_engine="""
        from unittest import mock
        from engine import run

        def test_run():
            with mock.patch("torch.amp.autocast") as replaced:
                run(print)
            assert replaced.called
        """,
    )
    assert b"portable.autocast" not in found["engine"].after


def test_the_attribute_of_an_option_is_no_device() -> None:
    before = b"import argparse\n\nparser = argparse.ArgumentParser()\nparser.add_argument('--cuda', dest='cuda')\n"
    assert port(before, "a.py").findings == []


SENT_TO_THE_CPU = [
    'if name == "cuda" and not torch.cuda.is_available():\n            name = "cpu"',
    'if not torch.cuda.is_available() and name == "cuda":\n            name = "cpu"',
    'if name.startswith("cuda") and not torch.cuda.is_available():\n            name = "cpu"',
    'if "cuda" in name and not torch.cuda.is_available():\n            raise ValueError("no CUDA")',
    'if name == "cuda":\n            if not torch.cuda.is_available():\n                name = "cpu"',
    'name = name if torch.cuda.is_available() else "cpu"',
    'if not torch.cuda.is_available():\n            name = "cpu"',
]


@pytest.mark.parametrize("lines", SENT_TO_THE_CPU)
def test_the_cpu_was_not_taken_any_more_for_a_device_that_a_caller_names(lines) -> None:
    before = f"""
    import torch

    def place(name):
        {lines}
        return torch.device(name)
    """
    assert "portable" not in ported(before)


def test_a_parameter_that_is_resolved_is_sent_to_the_cpu_by_the_device_in_use() -> None:
    before = """
        import torch

        def place(NAME="cuda"):
            if not torch.cuda.is_available():
                NAME = "cpu"
            return torch.device(NAME)
        """
    after = ported(before.replace("NAME", "device"))
    assert "device = portable.resolve(device)" in after
    assert "if not portable.is_available():" in after
    assert "portable" not in ported(before.replace("NAME", "name"))


def test_a_function_that_records_a_graph_was_called_on_other_devices() -> None:
    before = """
        import torch

        def record(f, x):
            graph = torch.cuda.CUDAGraph()
            return graph

        def run(f, x):
            if torch.cuda.is_available():
                return record(f, x)
            return f(x)
        """
    assert "portable" not in ported(before)


def test_a_script_by_the_name_of_a_test_counts_its_cards() -> None:
    before = """
        import subprocess, torch

        for number in range(torch.cuda.device_count()):
            subprocess.run(["python", "one.py", str(number)])
        """
    context = Context(extensions=frozenset({"ops"}))
    assert "range(portable.device_count())" in ported(before, "scripts/test_vistas.py", context=context)
