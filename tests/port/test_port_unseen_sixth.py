"""What a sixth round of readers found in repositories that the port had never seen: one test each, by what broke."""

from pathlib import Path
from textwrap import dedent

import pytest

from toprope.port import port
from toprope.port.project.context import Context, extensions_of
from toprope.port.runtime.placement import Tree
from toprope.port.scan import find, port_files
from toprope.port.syntax.source import parse


def ported(text, path="a.py", **given):
    """The program afterwards; a second run must change nothing."""
    done = port(dedent(text).strip("\n").encode() + b"\n", path, **given)
    assert done.skipped == ""
    assert port(done.after, path, **given).after == done.after
    return done.after.decode()


def reported(text):
    return {each.line: each.said for each in port(dedent(text).strip("\n").encode() + b"\n", "a.py").findings}


def project(folder, **files):
    """The files of a project after the port, by their names."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(dedent(text).strip("\n") + "\n")
    return {Path(each.path).stem: each.after.decode() for each in port_files(find([folder]))}


# Tests of the project's own operators

SKIPPED = """
import pytest
import torch
from package.functions import Functions

def test_values():
    if not torch.cuda.is_available():
        pytest.skip("CUDA is not available")
    device = torch.device("cuda")
    assert Functions().to(device)(torch.ones(2, device=device)).sum() > 0
"""
BUILDS = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

kind = CUDAExtension if use_cuda else CppExtension
modules = [kind(name="package.libOperators", sources=["a.cpp", "a.cu"])]
setup(ext_modules=modules, cmdclass={"build_ext": BuildExtension})
"""


@pytest.mark.parametrize(
    "files",
    [
        {"src__setup": BUILDS},
        {"package__load": 'import torch\ntorch.ops.load_library("liboperators.so")\n'},
        {"package__load": "import torch\ntorch.classes.load_library(path)\n"},
        {"package__load": 'from torch.utils.cpp_extension import load\nmodule = load("ops", ["ops.cu"])\n'},
    ],
    ids=["a class by another name", "a library", "a library of classes", "at run time"],
)
@pytest.mark.parametrize("name", ["src__TestFunctions", "tests__test_functions", "FunctionsTest", "check_all"])
def test_tests_of_the_projects_own_operators_were_opened_for_other_devices(tmp_path, name, files) -> None:
    """NNPOps: they were skipped without CUDA, and failed for want of a kernel afterwards."""
    after = project(tmp_path, **{name: SKIPPED, **files})
    assert "if not torch.cuda.is_available():" in after[name.rpartition("__")[2]]


def test_an_answer_of_another_file_that_skips_tests_of_kernels_was_converted(tmp_path) -> None:
    """NATTEN: a decorator in the package skips by a constant of its environment module."""
    environment = "import torch\nHAS_CUDA = torch.cuda.is_available()\n"
    testing = """
    from package.environment import HAS_CUDA
    def skip_without_cuda(function):
        def wrapper(self):
            if not HAS_CUDA:
                self.skipTest("CUDA is not available.")
            return function(self)
        return wrapper
    """
    names = {"package__environment": environment, "package__testing": testing}
    assert "portable" not in project(tmp_path, **names, package__setup=BUILDS)["environment"]
    (tmp_path / "package" / "setup.py").unlink()
    assert "portable" in project(tmp_path, **names)["environment"]


def test_tests_of_a_project_with_cuda_sources_were_opened(tmp_path) -> None:
    (tmp_path / "kernels.cu").write_text("__global__ void kernel() {}\n")
    context = Context.of([tmp_path / "kernels.cu"])
    assert "not torch.cuda.is_available()" in ported(SKIPPED, "test_values.py", context=context)
    assert "not portable.is_available()" in ported(SKIPPED, "test_values.py")


def test_a_test_of_a_triton_kernel_was_opened_and_others_are(tmp_path) -> None:
    context = Context(kernels=frozenset({"functions.add_kernel"}))
    assert "not torch.cuda.is_available()" in ported(SKIPPED, "test_values.py", context=context)
    other = SKIPPED.replace("functions", "other")
    assert "not portable.is_available()" in ported(other, "test_values.py", context=context)


def test_the_class_that_builds_an_extension_is_found_under_other_names() -> None:
    assert extensions_of(parse(BUILDS)) == {"libOperators"}
    renamed = "from torch.utils.cpp_extension import CUDAExtension as Cuda\nCuda('ops', ['a.cu'])\n"
    assert extensions_of(parse(renamed)) == {"ops"}


# Texts of devices that a function asks for


@pytest.mark.parametrize("question", ['device != "cuda"', 'device == "cuda"', 'device in ("cuda", "auto")'])
def test_a_default_is_resolved_together_with_the_question_for_its_text(question) -> None:
    """DROID-SLAM: the default took the way of a second device everywhere but on CUDA."""
    text = f"""
    def run(x, device="cuda"):
        if {question}:
            x = x.float()
        return x.to(device)
    """
    after = ported(text)
    assert "device = portable.resolve(device)" in after
    assert "portable.is_named(device, " in after
    stays = ported(text.replace("x = x.float()", 'x = x.to("xpu")'))
    assert f"if {question}:" in stays
    assert "return x.to(portable.resolve(device))" in stays


def test_a_default_that_is_only_compared_was_resolved_and_no_branch_took_it() -> None:
    """stablediffusion: it became the device in use, and the function knew CUDA's and the CPU alone."""
    text = """
    import torch
    def load(model, device=torch.device("cuda")):
        if device == torch.device("cuda"):
            model.cuda()
        elif device != torch.device("cpu"):
            raise ValueError(f"Incorrect device name. Received: {device}")
    """
    assert "resolve" not in ported(text)
    held = [each.held_back for each in port(dedent(text).encode(), "a.py").findings]
    assert "line 4 asks for it as it is, and nothing else is done with it" in held


@pytest.mark.parametrize(
    "text",
    [
        '@torch.library.custom_op("a::b", mutates_args=(), device_types="cuda")\ndef b(x):\n    return x\n',
        '@register_op("a::b", mutates_args=(), device_types="cuda")\ndef b(x):\n    return x\n',
        '@torch.library.register_kernel("a::b", "cuda")\ndef b(x):\n    return x\n',
        '@b.register_kernel("cuda")\ndef c(x):\n    return x\n',
        'torch.library.register_autocast("a::b", "cuda", torch.float16)\n',
    ],
)
def test_a_kernel_for_cuda_was_registered_for_other_devices(text) -> None:
    """NATTEN: tensors of other devices went into it, where there had been a clear error."""
    text = "import torch\n" + text
    assert ported(text) == text
    assert [*reported(text).values()] == ['"cuda" says for which device a kernel is: left as it is']


def test_a_text_that_is_compared_with_a_device_was_said_to_be_none() -> None:
    text = 'def run(x, device):\n    if device.upper() != "cuda":\n        x = x.to("xpu")\n    return x.to(device)\n'
    assert reported(text)[2] == '"cuda" is not seen to be a device: left as it is'


def test_a_question_said_that_it_stays_with_its_own_line() -> None:
    text = """
    import torch
    def test_it(device):
        if not torch.cuda.is_available() and device == "cuda":
            return
        run(device)
    """
    done = port(dedent(text).strip("\n").encode() + b"\n", "a.py")
    held = [each.held_back for each in done.findings if each.line == 3 and each.held_back]
    assert len(held) == 1
    assert "way out for a device of CUDA's that is not there" in held[0]


# Questions that belong together

BOTH = """
import torch
def convolve(x):
    if not {question}:
        out = torch.zeros(2, device=x.device)
    if x.device.type == "cuda":
        out = backend.convolve_cuda(x)
    return out
"""


@pytest.mark.parametrize("question", ['x.device.type == "cuda"', "x.is_cuda", '"cuda" in str(x.device)'])
def test_one_of_two_questions_about_a_device_was_converted(question) -> None:
    """torchsparse: the first was, the second guards a kernel; an NPU had no output."""
    assert ported(BOTH.format(question=question)) == BOTH.format(question=question).strip("\n") + "\n"


def test_a_question_next_to_one_for_data_parallel_is_converted() -> None:
    """pytorch/examples: one way of imagenet/main.py is for DistributedDataParallel, the other for DataParallel."""
    text = """
    import torch
    def place(model, device, many):
        if many:
            if device.type == "cuda":
                model.cuda()
        elif device.type == "cuda":
            model = torch.nn.DataParallel(model)
        return model
    """
    assert ported(text).count("portable.is_accelerator(device)") == 1


@pytest.mark.parametrize("first", ["cuda", "cpu"])
def test_a_device_that_had_a_way_of_its_own_was_sent_the_way_of_cuda(first) -> None:
    """torchsparse: `if cuda: elif cpu: else:` is right for an NPU in its last part."""
    text = """
    def query(x):
        if x.device.type == "FIRST":
            found = one(x)
        elif x.device.type == "SECOND":
            found = two(x)
        else:
            found = three(x.cpu()).to(x.device)
        return found
    """.replace("FIRST", first).replace("SECOND", "cpu" if first == "cuda" else "cuda")
    assert "portable" not in ported(text)
    refused = text.replace("found = three(x.cpu()).to(x.device)", "raise ValueError(x.device)")
    assert "portable.is_accelerator(x.device)" in ported(refused)


def test_a_question_for_one_make_of_gpu_was_converted_in_part() -> None:
    """NATTEN: is_cuda and is_rocm ask torch.version.cuda and .hip, which say no on all other devices."""
    text = """
    import torch
    def is_rocm(device):
        return torch.cuda.is_available() and torch.version.hip and device.type == "cuda"
    def move(x):
        if torch.version.cuda and torch.cuda.is_available():
            x = x.cuda()
        return x
    """
    assert "portable" not in ported(text)


# Numbers of cards


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("batch *= torch.cuda.device_count()", "batch *= max(1, torch.cuda.device_count())"),
        ("rate = 0.1 * (torch.cuda.device_count() or 1)", "rate = 0.1 * (max(1, torch.cuda.device_count()) or 1)"),
        ("batch = 8 * max(1, torch.cuda.device_count())", "batch = 8 * max(1, torch.cuda.device_count())"),
        ("print(torch.cuda.device_count())", "print(portable.device_count())"),
    ],
)
def test_a_batch_was_scaled_by_all_cards_although_data_parallel_stays(before, after) -> None:
    """Deep Learning with PyTorch: one card was given the work of all of them; left as it was, the batch was empty."""
    begin = "import torch\nmodel = torch.nn.DataParallel(model)\n"
    assert ported(begin + before).endswith(f"{after}\n")
    assert "torch.cuda" not in ported("import torch\n" + before)
    both = f"{begin}torch.distributed.init_process_group()\n"
    assert "batch *= portable.device_count()" in ported(f"{both}batch *= torch.cuda.device_count()")


# Edits that nobody wants


def test_an_unused_import_of_torch_cuda_was_the_only_change_of_a_file() -> None:
    text = "import torch\nimport torch.cuda\nx = torch.ones(2)\n"
    assert ported(text) == text
    assert "import torch.cuda" not in ported(text + "torch.cuda.synchronize()\n")


# Where the vendored file lies


def test_a_package_that_only_a_configuration_names_imported_the_vendored_file_from_a_guessed_place(tmp_path) -> None:
    """stablediffusion: `ldm/` and `ldm/modules/` have no __init__.py, and `encoders` alone is no name of a module."""
    file = tmp_path / "ldm" / "modules" / "encoders" / "modules.py"
    file.parent.mkdir(parents=True)
    (file.parent / "__init__.py").touch()
    file.write_text("import torch\nclass Embedder:\n    def run(self, x):\n        return x.cuda()\n")
    (tmp_path / "other.py").write_text("import torch\n")
    place = Tree([tmp_path], [file, file.parent / "__init__.py", tmp_path / "other.py"]).place(file)
    assert (place.module, place.folders) == (".toprope_portable", (file.parent,))


# Answers in tables


@pytest.mark.parametrize(
    "given",
    ["train({'use_cuda': torch.cuda.is_available()})", "p = {}\np['use_cuda'] = torch.cuda.is_available()\ntrain(p)"],
)
def test_an_answer_under_a_key_was_not_followed_to_the_file_that_reads_it(tmp_path, given) -> None:
    """SparseConvNet: the key said yes on an NPU, and what it guards there stayed CUDA's."""
    train = """
    import kernels_cuda
    def train(p, model):
        if p['use_cuda']:
            model = kernels_cuda.wrap(model)
        return model
    """
    after = project(tmp_path, main=f"import torch\nfrom train import train\n{given}\n", train=train)
    assert "portable" not in after["main"]
