"""CUDA's toolkit in scripts, build files, images and jobs: what was silent there is one line a file."""

from textwrap import dedent

import pytest

from toprope.port.files import FileKind, kind_of, port_text


def port_of(text, name):
    return port_text(dedent(text).lstrip("\n").encode(), name, kind_of(name))


def said(text, name):
    return [f"{each.line} {each.rule.code} {each.said}" for each in port_of(text, name).findings]


@pytest.mark.parametrize(("name", "line", "before"), [
    ("run.sh", "module load cuda/10.0", "cuda/10.0"),
    ("run.sh", "module load gcc/9 NCCL/2.4.7-1-cuda.10.0", "NCCL/2.4.7-1-cuda.10.0"),
    ("run.sh", 'if x; then module add "cudnn/v7.4"; fi', "cudnn/v7.4"), ("run.sh", "ml CUDA/11.7", "CUDA/11.7"),
    ("run.sh", "module load ${CUDA_MODULE}", "${CUDA_MODULE}"), ("run.sh", "spack load nvhpc@22", "nvhpc@22"),
    ("run.sh", "nsys profile python t.py", "nsys"), ("run.sh", "srun ncu python t.py", "ncu"),
    ("run.sh", "echo quit | nvidia-cuda-mps-control", "nvidia-cuda-mps-control"),
    ("run.sh", "export NCCL_IB_DISABLE=1", "export NCCL_IB_DISABLE=1"),
    ("run.sh", "FORCE_CUDA=1 pip install .", "FORCE_CUDA=1"),
    ("Dockerfile", "RUN apt-get install -y libnccl2 curl", "libnccl2"),
    ("CMakeLists.txt", "enable_language(CUDA)", "enable_language(CUDA)"),
    ("CMakeLists.txt", "project(natten LANGUAGES CXX CUDA)", "project(natten LANGUAGES CXX CUDA)"),
    ("CMakeLists.txt", "    LANGUAGES CXX CUDA", "    LANGUAGES CXX CUDA"),
    ("CMakeLists.txt", "check_language(CUDA)", "check_language(CUDA)"),
    ("CMakeLists.txt", 'set(CMAKE_CUDA_ARCHITECTURES "80")', "CMAKE_CUDA_ARCHITECTURES"),
    ("CMakeLists.txt", "set_source_files_properties(a.cpp PROPERTIES LANGUAGE CUDA)", "LANGUAGE CUDA"),
    ("CMakeLists.txt", "target_link_libraries(a CUDA::cudart)", "CUDA::cudart"),
    ("cmake/a.cmake", "FIND_PACKAGE(CUDAToolkit REQUIRED)", "FIND_PACKAGE(CUDAToolkit REQUIRED)"),
    ("CMakeLists.txt", "cuda_add_library(a a.cu)", "cuda_add_library"),
    ("Makefile", "\tnvcc -c a.cu", "nvcc"), ("Makefile", "NVCC := $(CUDA)/bin/nvcc", "$(CUDA)/bin/nvcc"),
    ("lib.mk", "LIBS = -L/usr -lcudart", "-lcudart"), ("meson.build", "add_languages('cuda')", "add_languages('cuda'"),
])  # fmt: skip
def test_the_toolkit_of_cuda_is_seen(name, line, before):
    assert [(each.rule.code, each.before) for each in port_of(f"a\n{line}\n", name).findings] == [("TR108c", before)]
    assert port_of(f"# {line.strip()}\n", name).findings == []


@pytest.mark.parametrize(("name", "line"), [
    ("run.sh", "module load gcc/9.2 openmpi"), ("run.sh", "module unload cuda"), ("run.sh", "module purge"),
    ("run.sh", "echo nsys ncu"), ("run.sh", "html cuda"), ("run.sh", "python --ncu 3"),
    ("run.sh", "python train.py --nv 3"),
    ("CMakeLists.txt", "find_package(Torch REQUIRED)"), ("CMakeLists.txt", "project(barracuda LANGUAGES CXX)"),
    ("Makefile", "all: notnvcc nvcc.txt"), ("meson.build", "project('barracuda', 'cpp')"),
])  # fmt: skip
def test_what_only_looks_like_the_toolkit_is_left_alone(name, line):
    assert port_of(f"{line}\n", name).findings == []


@pytest.mark.parametrize(("name", "line", "before"), [
    ("run.sh", "singularity exec --nv a.sif python t.py", "--nv"), ("run.sh", "srun apptainer run --nv a.sif", "--nv"),
    ("run.sh", "    --nv \\", "--nv"), ("run.sh", "podman run --device nvidia.com/gpu=all a", "nvidia.com/gpu"),
    ("pod.yaml", "          nvidia.com/gpu: 1", "nvidia.com/gpu"),
    ("pod.yaml", "image: nvidia/cuda:11", "nvidia/cuda:11"),
    ("pod.yaml", "nvidia.com/mig-1g.5gb: 1", "nvidia.com/mig-1g.5gb"),
    ("sky.yaml", "accelerators: V100:4", "accelerators: V100:4"),
    ("image.def", "From: nvidia/cuda:11", "nvidia/cuda:11"),
    ("Singularity", "From: nvcr.io/nvidia/pytorch", "nvcr.io/nvidia/pytorch"),
    ("job.pbs", "#PBS -l select=1:ngpus=4", "ngpus=4"), ("job.lsf", '#BSUB -gpu "num=1"', "-gpu"),
    ("job.sub", "#SBATCH -G 4", "-G 4"), ("run.qsub", "#$ -l gpu=1", "gpu=1"),
    ("Makefile", "\tdocker run --gpus all a", "--gpus all"),
])  # fmt: skip
def test_cards_that_a_container_or_a_job_is_given_are_seen(name, line, before):
    assert [(each.rule.code, each.before) for each in port_of(f"{line}\n", name).findings] == [("TR107", before)]


def test_a_file_has_one_line_about_the_toolkit_which_names_the_others():
    assert said(
        """
        module load cuda/10.0
        module load NCCL/2.4
        # module load cuda/11
        module load cudnn/v7.4
        nvidia-smi
        nvidia-smi
        """,
        "run.sh",
    ) == [
        "1 TR108c cuda/10.0: CUDA's toolkit in a script or a build; also in line 2, line 4",
        "5 TR108a nvidia-smi: it asks NVIDIA's driver; NPUs have npu-smi info; also in line 6",
    ]
    (one,) = said("limits:\n  nvidia.com/gpu: 1\nrequests:\n  nvidia.com/gpu: 1\n", "pod.yaml")
    assert one.endswith("; also in line 4")


def test_a_recipe_of_make_is_a_command_and_an_assignment_of_make_is_not():
    done = port_of("CUDA_VISIBLE_DEVICES=0\ntest:\n\tCUDA_VISIBLE_DEVICES=0 python t.py\n", "Makefile")
    assert done.after == (
        b"CUDA_VISIBLE_DEVICES=0\ntest:\n\tCUDA_VISIBLE_DEVICES=0 ASCEND_RT_VISIBLE_DEVICES=0 python t.py\n"
    )
    assert [(each.line, each.rule.code, each.converted) for each in done.findings] == [
        (1, "TR108", False), (3, "TR108", True),
    ]  # fmt: skip
    assert port_text(done.after, "Makefile", FileKind.BUILD).after == done.after


@pytest.mark.parametrize("line", [
    "pip install torch -f https://download.pytorch.org/whl/cu113/torch_stable.html", "pip install apex",
])  # fmt: skip
def test_what_a_recipe_of_make_installs_is_looked_at(line):
    assert [each.rule.code for each in port_of(f"a:\n\t{line}\n", "Makefile").findings] == (
        ["TR106a"] if "torch" in line else ["TR106"]
    )


def test_an_environment_of_conda_is_one_in_either_order_of_its_tables():
    for text in (
        "channels:\n- nvidia\ndependencies:\n- cuda-nvcc\n",
        "dependencies:\n- cuda-nvcc\nchannels:\n- nvidia\n",
    ):
        assert said(text, "conf.yaml")[0].endswith("TR106 cuda-nvcc is for CUDA alone")


@pytest.mark.parametrize("line", [
    "module load cuda/11", "singularity run --nv a.sif", "export CUDA_HOME=/usr/local/cuda",
])  # fmt: skip
def test_the_toolkit_is_seen_in_a_block_of_a_document_alone(line):
    assert [each.rule.code for each in port_of(f"```sh\n{line}\n```\n", "README.md").findings] == ["TR110"]
    assert port_of(f"{line}\n", "README.md").findings == []


def test_an_image_names_a_package_once():
    assert len(port_of("RUN apt-get install -y cuda-toolkit\n", "Dockerfile").findings) == 1
