"""Rules TR106 to TR110, for files that are not Python: what is reported there, and what is rewritten.

Used by `text`; their pages are docs/port/TR106.md and so on, written by `port.pages`. Tests:
tests/port/test_port_files.py.
"""

from __future__ import annotations

from toprope.port.files.sources import BINDING, CUDA
from toprope.port.rule import Example, Kind, Rule

__all__ = [
    "BUILD",
    "COMMAND",
    "CONFIG",
    "IMAGE",
    "NOTEBOOK",
    "OPTION",
    "PACKAGE",
    "PIN",
    "RULES",
    "SHELL",
    "TOOL",
    "TOOLKIT",
]


def _rule(code: str, kind: Kind, title: str, why: str, source: str, examples: tuple[Example, ...]) -> Rule:
    return Rule(code, kind, title, " ".join(why.split()), source, examples, "files")


def _twin(without: str, text: str) -> str:
    """The list for NPUs of an example."""
    return (
        "# Made by toprope port from requirements.txt, which stays for CUDA; without what is built for CUDA alone:\n"
        f"{without}\n# Add torch_npu, in the release that belongs to the torch of this list.\n{text}"
    )


PACKAGE = _rule(
    "TR106", Kind.REVIEW, "flash-attn, nvidia-*-cu12, packages for CUDA alone: requirements-npu.txt is without them",
    """They cannot be installed, or do nothing, on a machine without CUDA, and no marker of pip says "where there is
    CUDA". The list stays as it is, so that nothing changes for those who install it; requirements-npu.txt is put
    next to it, and says what it is without. It has toprope, which ported code imports (not with --vendor), and in place
    of a release of torch that ported code does not run with the first that it does. Where that list is there already
    it stays, and what it has of CUDA's is reported in it. In pyproject.toml and environment.yml they are only reported:
    an extra named "cuda" is a place for them.""",
    "the packages' pages on PyPI",
    (
        Example("torch\nflash-attn==2.6.3", _twin("#   flash-attn==2.6.3", "torch\n# flash-attn==2.6.3\ntoprope\n")),
        Example("torch\nnumpy", reported=False),
    ),
)  # fmt: skip

BUILD = _rule(
    "TR106a", Kind.REVIEW, "torch==2.4.0+cu121, --index-url .../whl/cu121: the same version without CUDA's build",
    """The part behind + names a build for CUDA that only PyTorch's own index has. Without both, pip takes the build of
    the machine's own index; on Linux that is the one for CUDA too. Of a list of requirements it is the list for NPUs
    that is without them.""",
    "PyTorch's page on installing",
    (
        Example(
            "--extra-index-url https://download.pytorch.org/whl/cu121\ntorch==2.4.0+cu121\nnumpy",
            _twin(
                "#   --extra-index-url https://download.pytorch.org/whl/cu121\n"
                "#   torch==2.4.0+cu121 (here torch>=2.10)",
                "# --extra-index-url https://download.pytorch.org/whl/cu121\ntorch>=2.10\nnumpy\ntoprope\n",
            ),
        ),
        Example("torch==2.4.0", reported=False),
    ),
)  # fmt: skip

PIN = _rule(
    "TR106c", Kind.REVIEW, "torch==1.13.1, pytorch<2: a release that ported code does not run with",
    """Ported code needs torch 2.10 where it imports toprope, as toprope itself does: pip refuses both together, or
    installs a torch that toprope does not run with. With --vendor it needs 2.0 or newer. An NPU needs the release that
    its torch_npu is made for. Raise the version, and run the tests with it before the port: what changed between the
    releases shows then, and not as a fault of the port. A lower bound alone lets the newest in, and
    toprope raises it: it is reported with --vendor alone. Each torchvision, torchaudio and torchtext is built for one
    release of torch, and is reported where that one is too old.""",
    "toprope's pyproject.toml; tried with the wheels of 2.1.2 and 2.4.1",
    (
        Example("torch==1.13.1\nnumpy"),
        Example("torch==2.1.2\nnumpy"),
        Example("torch>=2.2.0,<=2.3.0\nnumpy"),
        Example("torch>=1.7,<3", reported=False),
        Example("torch\ntorchaudio<2.2\ntorchvision==0.15.2"),
        Example("torch>=2.1\ntorchmetrics==1.0\npytorch-lightning==1.9", reported=False),
    ),
)  # fmt: skip

IMAGE = _rule(
    "TR107", Kind.NOT_CONVERTIBLE,
    "FROM nvidia/cuda, --gpus all, runners with GPUs: another card has an image and options of its own",
    """An image for another card starts from that vendor's (quay.io/ascend/cann for NPUs), and its devices are given to
    a container in another way (--device /dev/davinci0 and the driver's folders).""",
    "NVIDIA's and the vendor's documentation of containers",
    (Example("FROM nvidia/cuda:12.4.0-devel-ubuntu22.04\nRUN pip install torch"),),
)  # fmt: skip

SHELL = _rule(
    "TR108", Kind.REVIEW, "CUDA_VISIBLE_DEVICES=0, CUDA_LAUNCH_BLOCKING=1 in a script: the NPUs' variable too",
    """Another card is masked by another variable. Both get the same value, and each is read where its card is. A list
    of NPUs must be ascending. PYTORCH_CUDA_ALLOC_CONF gets its twin where all that it sets is known to torch_npu.""",
    "torch_npu's documentation",
    (
        Example(
            "CUDA_VISIBLE_DEVICES=0,1 torchrun train.py",
            "CUDA_VISIBLE_DEVICES=0,1 ASCEND_RT_VISIBLE_DEVICES=0,1 torchrun train.py",
        ),
        Example('export CUDA_VISIBLE_DEVICES="$1"', 'export CUDA_VISIBLE_DEVICES="$1" ASCEND_RT_VISIBLE_DEVICES="$1"'),
        Example("export CUDA_LAUNCH_BLOCKING=1", "export CUDA_LAUNCH_BLOCKING=1 ASCEND_LAUNCH_BLOCKING=1"),
        Example("PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync python train.py"),
        Example("# CUDA_VISIBLE_DEVICES=0 python train.py", reported=False),
    ),
)  # fmt: skip

TOOL = _rule(
    "TR108a", Kind.NOT_CONVERTIBLE, "nvidia-smi in a script: it asks NVIDIA's driver; NPUs have npu-smi info",
    """It asks NVIDIA's driver. `npu-smi info` asks the driver of NPUs, in another form.""",
    "NVIDIA's and the vendor's documentation",
    (Example("nvidia-smi --query-gpu=memory.used --format=csv"), Example("# nvidia-smi", reported=False)),
)  # fmt: skip

OPTION = _rule(
    "TR108b", Kind.REVIEW, "--accelerator gpu, --device cuda:0 in a script: CUDA's name on every device",
    """The program is given the name of CUDA on every device. An option whose default or choices name CUDA is resolved
    by ported code, and is not reported; others are to be resolved where they are read, portable.resolve(args.device),
    or given "auto" (Lightning) or another name in a script of their own.""",
    "seen in public code",
    (
        Example("python train.py --accelerator gpu --devices 4"),
        Example('python predict.py --model_device "cuda:0"'),
        Example("python train.py --device cpu\n# python train.py --device cuda", reported=False),
    ),
)  # fmt: skip

TOOLKIT = _rule(
    "TR108c", Kind.NOT_CONVERTIBLE,
    "module load cuda, find_package(CUDAToolkit), nvcc in a Makefile: CUDA's toolkit in a script or a build",
    """Modules, compilers, libraries and tools of CUDA's toolkit are not there on other machines: a script stops, or a
    build does. NPUs have the toolkit CANN, which a script takes in with `source .../set_env.sh`. NCCL_* variables say
    nothing to HCCL, which has its own (HCCL_CONNECT_TIMEOUT, HCCL_SOCKET_IFNAME). A file is reported once; the line
    names the others.""",
    "CMake's and the vendor's documentation",
    (
        Example("module load gcc/9.2 cuda/11.7 cudnn/8.5\nmodule load NCCL/2.7\nsrun python train.py"),
        Example("module load gcc/9.2\n# module load cuda\npython train.py", reported=False),
    ),
)  # fmt: skip

NOTEBOOK = _rule(
    "TR109", Kind.REVIEW, "a cell of a notebook that says CUDA: no rule looks at it, so that a person has to",
    """The cells of a notebook are ported as one program, and its JSON stays as it is. Commands of IPython (%env,
    %timeit) and cells that are no Python cannot be: a person has to look at them. Commands of the shell (!python ...)
    are looked at as scripts are.""",
    "IPython's documentation",
    (Example("%env CUDA_VISIBLE_DEVICES=0"), Example("%matplotlib inline", reported=False)),
)  # fmt: skip

COMMAND = _rule(
    "TR110", Kind.NOT_CONVERTIBLE, "commands in a document that say CUDA: say there what other devices need",
    """Commands, and images for containers, are copied and run as they are. Say there what other devices need.""",
    "seen in public code",
    (
        Example("```sh\nCUDA_VISIBLE_DEVICES=0 python train.py\n```"),
        Example("```\ndocker run --gpus all -it image\n```"),
        Example("It uses CUDA_VISIBLE_DEVICES.", reported=False),
    ),
)  # fmt: skip

CONFIG = _rule(
    "TR110a", Kind.REVIEW, 'device: cuda, "backend": "nccl" in a configuration: resolve it where it is read',
    """The program is given the name of CUDA on every device. Resolve it where the program reads it:
    portable.resolve("cuda") is the name of the device in use, portable.resolve("nccl") its backend. Or give each device
    a configuration of its own. A file is reported once.""",
    "seen in public code",
    (
        Example("model: unet\ntrain:\n  device: 'cuda:0'\n  backend: nccl"),
        Example("trainer:\n  accelerator: gpu\n  devices: 2"),
        Example("versions:\n  cuda: 11.8\n# device: cuda", reported=False),
    ),
)  # fmt: skip

RULES = (PACKAGE, BUILD, PIN, IMAGE, SHELL, TOOL, OPTION, TOOLKIT, NOTEBOOK, COMMAND, CONFIG, CUDA, BINDING)
