"""The port of files that are not Python.

Holds `port.files` and `port.write`.
"""

import pathlib
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from toprope.port import port
from toprope.port.files import FileKind, kind_of, port_text, text_rules
from toprope.port.files.pins import OLDEST_WITH_TOPROPE
from toprope.port.scan import find, port_files
from toprope.port.write import write

NAMES = {
    "TR106": "requirements.txt", "TR106a": "requirements.txt", "TR106c": "requirements.txt", "TR107": "Dockerfile",
    "TR108": "run.sh", "TR108a": "run.sh", "TR108b": "run.sh", "TR110": "README.md",  # TR109: test_port_notebooks.py
    "TR110a": "config.yaml", "TR120": "ops.cu", "TR120a": "ops.cpp",
}  # fmt: skip
CASES = [
    pytest.param(rule, example, id=f"{code}-{number}")
    for code, rule in text_rules().items()
    for number, example in enumerate(rule.examples)
    if code in NAMES
]


def ported(text, name, *, vendored=False):
    data = text.encode()
    kind = kind_of(name)
    assert kind is not None
    found = port_text(data, name, kind, vendored=vendored)
    assert found.skipped == ""
    return found


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_example(rule, example):
    found = ported(example.before, NAMES[rule.code])
    text = found.after if found.companion is None else found.companion[1]
    assert text.decode() == (example.before if example.after is None else example.after)
    assert (rule in [each.rule for each in found.findings]) == example.reported
    again = ported(text.decode(), NAMES[rule.code])
    assert (again.after, again.companion) == (text, None)


def test_names():
    assert {name: kind_of(name) for name in (
        "a/b.py", "x.ipynb", "requirements-dev.txt", "requirements/gpu.txt", "environment.yml", "pyproject.toml",
        "docker/Dockerfile.gpu", "docker-compose.yaml", ".github/workflows/test.yml", "scripts/run.sh", "README.md",
    )} == {
        "a/b.py": FileKind.PYTHON, "x.ipynb": FileKind.NOTEBOOK, "requirements-dev.txt": FileKind.REQUIREMENTS,
        "requirements/gpu.txt": FileKind.REQUIREMENTS, "environment.yml": FileKind.ENVIRONMENT,
        "pyproject.toml": FileKind.PROJECT, "docker/Dockerfile.gpu": FileKind.IMAGE,
        "docker-compose.yaml": FileKind.IMAGE, ".github/workflows/test.yml": FileKind.WORKFLOW,
        "scripts/run.sh": FileKind.SHELL, "README.md": FileKind.DOCUMENT,
    }  # fmt: skip
    assert [kind_of(name) for name in ("notes.txt", "main.rs")] == [None] * 2
    assert {kind_of(name) for name in ("config.yaml", "a.json", "b.toml", "c.ini", "d.cfg")} == {FileKind.CONFIG}
    assert [kind_of(name) for name in ("ops.cu", "ops.cuh", "main.cpp", "a.h")] == [FileKind.CUDA] * 2 + [
        FileKind.CPP
    ] * 2


ENVIRONMENT = """name: edit
channels: [pytorch, nvidia]
dependencies:
  - python=3.10
  - pytorch-cuda=12.1
  - cudatoolkit=11.3  # for old cards
  - pip:
    - torch==2.10.0+cu121
    - nvidia-cublas-cu12
    # - flash-attn
"""


def test_an_environment_is_reported_and_its_builds_of_torch_are_rewritten():
    found = ported(ENVIRONMENT, "environment.yml")
    assert [(each.line, each.rule.code) for each in found.findings] == [
        (5, "TR106"), (6, "TR106"), (8, "TR106a"), (9, "TR106"),
    ]  # fmt: skip
    assert found.after.decode() == ENVIRONMENT.replace("+cu121", "")


SCRIPT = (
    "#!/bin/bash\r\n"
    "export CUDA_VISIBLE_DEVICES=${GPUS:-0}\r\n"
    "if [ -z $CUDA_VISIBLE_DEVICES ]; then echo none; fi\r\n"
    "CUDA_VISIBLE_DEVICES=0 python a.py & CUDA_VISIBLE_DEVICES=1 python b.py\r\n"
    "pip install flash-attn --no-build-isolation; docker run --gpus all image\r\n"
)


def test_a_script_keeps_its_line_ends_and_gives_each_command_its_own_mask():
    found = ported(SCRIPT, "run.sh")
    lines = found.after.decode().split("\r\n")
    assert lines[1] == "export CUDA_VISIBLE_DEVICES=${GPUS:-0} ASCEND_RT_VISIBLE_DEVICES=${GPUS:-0}"
    assert lines[2] == SCRIPT.split("\r\n")[2]
    assert lines[3] == (
        "CUDA_VISIBLE_DEVICES=0 ASCEND_RT_VISIBLE_DEVICES=0 python a.py "
        "& CUDA_VISIBLE_DEVICES=1 ASCEND_RT_VISIBLE_DEVICES=1 python b.py"
    )
    assert [each.rule.code for each in found.findings if each.line == 5] == ["TR106", "TR107"]
    assert [each.after for each in found.findings if each.line == 2] == [lines[1].removeprefix("export ")]


REQUIREMENTS = """--index-url https://download.pytorch.org/whl/cu121
torch==2.12.0+cu126
flash-attn>=2.6 ; python_version < "3.13"  # fast
numpy
xformers  # toprope: ignore[TR106]
"""


def test_the_list_of_requirements_stays_and_one_for_npus_is_put_next_to_it(tmp_path):
    found = ported(REQUIREMENTS, "sub/requirements.txt")
    assert found.after.decode() == REQUIREMENTS
    assert found.changed
    name, text = found.companion
    assert name == "requirements-npu.txt"
    lines = text.decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "torch==2.12.0", "numpy", "xformers  # toprope: ignore[TR106]", "toprope",
    ]  # fmt: skip
    for line in lines:  # as pip reads them
        if not line.startswith("#"):
            Requirement(line.split("#")[0])
    assert kind_of("sub/requirements-cuda.txt") is None
    (tmp_path / "requirements.txt").write_text(REQUIREMENTS)
    (first,) = port_files(find([tmp_path]))
    write(first)
    assert (tmp_path / "requirements.txt").read_text() == REQUIREMENTS
    assert (tmp_path / "requirements-npu.txt").read_bytes() == text
    assert text.startswith(b"# Made by toprope port from requirements.txt, which stays for CUDA")
    for second in port_files(find([tmp_path])):
        assert (second.changed, second.findings) == (False, [])


@pytest.mark.parametrize(("vendored", "wanted"), [
    (False, ["torch>=2.10", "torchvision>=0.25", "numpy", "toprope"]),
    (True, ["torch==2.4.0", "torchvision>=0.15", "numpy"]),
])  # fmt: skip
def test_the_list_for_npus_has_toprope_and_a_torch_that_ported_code_runs_with(vendored, wanted):
    text = "torch==2.4.0+cu121\ntorchvision==0.14.1\nflash-attn\nnumpy"
    found = port_text(text.encode(), "requirements.txt", FileKind.REQUIREMENTS, vendored=vendored)
    lines = found.companion[1].decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == wanted
    pins = port_text(b"torch==2.4.0\nnumpy\n", "requirements.txt", FileKind.REQUIREMENTS)
    assert (pins.companion, [each.rule.code for each in pins.findings]) == (None, ["TR106c"])
    second = port_text(text.encode(), "requirements.txt", FileKind.REQUIREMENTS, has_twin=True)
    assert [(each.rule.code, each.edits) for each in second.findings] == [("TR106c", ()), ("TR106c", ())]


def test_a_list_for_npus_that_is_there_stays_and_what_it_has_of_cuda_is_reported(tmp_path):
    (tmp_path / "requirements.txt").write_text(REQUIREMENTS)
    (tmp_path / "requirements-npu.txt").write_text("torch==2.11.0\nflash-attn>=2\ntorch==2.12.0+cu118\n")
    npu, general = port_files(find([tmp_path]))
    assert [(each.line, each.rule.code, each.edits) for each in npu.findings] == [(2, "TR106", ()), (3, "TR106a", ())]
    assert (npu.changed, general.changed, list(general.findings)) == (False, False, [])


def test_a_requirement_over_several_lines_is_left_out_whole():
    text = "numpy\nbitsandbytes==0.41.0 \\\n    --hash=sha256:a \\\n    --hash=sha256:b\ntorch\n# xformers \\\ntriton\n"
    found = ported(text, "requirements.txt")
    assert [(each.line, each.before) for each in found.findings] == [(2, "bitsandbytes==0.41.0"), (7, "triton")]
    lines = found.companion[1].decode().splitlines()
    assert lines[-7:] == [
        "# bitsandbytes==0.41.0 \\", "#     --hash=sha256:a \\", "#     --hash=sha256:b", "torch", "# xformers \\",
        "# triton", "toprope",
    ]  # fmt: skip


def test_triton_for_windows_is_a_package_for_cuda_and_a_project_has_an_extra_for_it():
    found = ported("triton-windows<3.5\nnumpy\n", "requirements.txt")
    assert found.companion[1].endswith(b"# triton-windows<3.5\nnumpy\ntoprope\n")
    (said,) = ported('[project]\ndependencies = [\n  "flash-attn",\n]\n', "pyproject.toml").findings
    assert said.message == 'flash-attn is for CUDA alone; an extra is a place for it: cuda = ["flash-attn"]'


@pytest.mark.parametrize(
    "name", ["tinycudann", "nvdiffrast", "kaolin==0.15.0", "spconv-cu118", "cumm-cu120", "cuda-python", "numba-cuda"]
)
def test_a_package_for_cuda_alone_is_one_in_each_list_of_requirements(name):
    """Packages whose import is reported passed in the lists that install them."""
    assert [each.rule.code for each in ported(f"numpy\n{name}\n", "requirements.txt").findings] == ["TR106"]
    text = f"from setuptools import setup\n\nsetup(install_requires=['numpy', {name!r}])\n"
    assert [each.rule.code for each in port(text.encode()).findings] == ["TR106b"]


def test_bytes_that_are_no_text_are_skipped_with_a_reason():
    found = port_text(b"cuda \xff", "run.sh", FileKind.SHELL)
    assert (found.skipped, found.after) == ("byte 5 is not utf-8", b"cuda \xff")


@given(
    st.text(max_size=60),
    st.sampled_from([kind for kind in FileKind if kind not in (FileKind.PYTHON, FileKind.NOTEBOOK)]),
)
def test_any_text_is_left_alone_or_settled_after_one_pass(text, kind):
    data = f"cuda {text}\nCUDA_VISIBLE_DEVICES={text} torch==2.1.0+cu118".encode()
    once = port_text(data, "x", kind)
    twice = port_text(once.after, "x", kind)
    assert twice.after == once.after
    assert once.after.count(b"\n") == data.count(b"\n")


PINS = {
    "requirements.txt": {
        "torch==1.13.1": True, "torch==1.12.1+cpu": True, "torch>=1.7": True, "torch~=1.11": True, "torch<2": True,
        "torch<=1.13": True, "torch >= 1.8, <2.3": True, "torch==2.0.1": False, "torch": False, "torch<3": False,
        "torch>=2.1,!=1.9": False, "torchvision==0.14": True, "# torch==1.13.1": False, "torch==1.*": True,
    },
    "environment.yml": {"  - pytorch=1.12.1": True, "  - pytorch==1.7.1=py3.8_cuda11": True, "  - pytorch>=2.2": False},
    "pyproject.toml": {
        'torch = "^1.13"': True, 'torch = {version = "1.13.1", optional = true}': True, '    "torch>=1.10",': True,
        'torch = "^2.1"': False,
    },
    "setup.cfg": {"    torch>=1.4": True, "    torch>=2.4": False},
    "install.sh": {"pip install torch==1.8.1 numpy": True, "echo torch==1.8.1": False},
    "README.md": {"```\nconda install pytorch==1.7.1 -c pytorch\n```": True, "It needs torch==1.7.1": False},
}  # fmt: skip
LINES = [(name, line, want) for name, lines in PINS.items() for line, want in lines.items()]


@pytest.mark.parametrize(("name", "line", "want"), LINES)
def test_a_release_of_torch_that_is_too_old_is_reported(name, line, want):
    """The ported program's first import failed, and nothing had said why."""
    found = [each for each in ported(line + "\n", name, vendored=True).findings if each.rule.code == "TR106c"]
    assert bool(found) == want
    assert all("torch" in each.before and each.line == line.count("\n") // 2 + 1 for each in found)


WITH_TOPROPE = {
    "requirements.txt": {
        "torch==2.1.2": True, "torch<=2.3.0": True, "torch>=2.2.0,<=2.3.0": True, "torch<2.10": True,
        "torch<2.11": False,
        "torch~=2.1.0": True, "torch~=2.1": False, "torch==2.*": False, "torch>=2.1": False, "torch>=1.7": False,
        "torch==2.10.0": False, "torch<3": False,
    },
    "environment.yml": {"  - pytorch=2.1": True, "  - pytorch=2": False, "  - pytorch>=2.2": False},
    "pyproject.toml": {'torch = "2.1"': True, 'torch = "^2.1"': False, '    "torch==2.4.1",': True},
    "setup.cfg": {"    torch<2.5": True},
    "install.sh": {"pip install torch==2.4.1 numpy": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line", "want"),
    [(name, line, want) for name, lines in WITH_TOPROPE.items() for line, want in lines.items()],
)
def test_a_pin_that_toprope_does_not_run_with_is_reported_without_vendor(name, line, want):
    """`torch<=2.3.0` passed, and pip could not install it together with toprope."""
    found = [each for each in ported(line + "\n", name).findings if each.rule.code == "TR106c"]
    assert bool(found) == want


def test_the_oldest_release_is_the_one_of_the_project():
    text = (pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    (named,) = tomllib.loads(text)["project"]["optional-dependencies"]["torch"]
    assert named == "torch>={}.{}".format(*OLDEST_WITH_TOPROPE)


def test_pins_of_a_setup_py_count_by_the_mode_and_through_a_name(tmp_path):
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\nNEEDED = [\n    'torch>=2.2,<=2.3',\n    'torch==1.13',\n]\n"
        "setup(install_requires=NEEDED)\n"
    )
    for runtime, lines in ((None, [3, 4]), (lambda path: "toprope_portable", [4])):
        (found,) = port_files(find([tmp_path]), runtime=runtime)
        assert [(each.rule.code, each.line) for each in found.findings] == [("TR106c", line) for line in lines]


def test_an_old_release_in_a_setup_py_is_reported_with_its_line(tmp_path):
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\n\nsetup(\n    install_requires=[\n        'numpy',\n        'torch==1.7',\n"
        "        'torch>=2.1',\n    ],\n)\n"
    )
    (found,) = port_files(find([tmp_path]))
    assert [(each.rule.code, each.line) for each in found.findings] == [("TR106c", 6)]
