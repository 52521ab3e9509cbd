"""Small stand-ins for the libraries that foreign programs import, and ported programs run with them. Not a test.

The data are a few generated pictures and the weights a few numbers: what is tried is where a program puts them. Weights
are real safetensors files, read by the real library.

Used by tests/port/test_port_corpus.py. A library that a further program imports is added here.
"""

from pathlib import Path

from device_stand_ins import run as run_forked
from device_stand_ins import run_anew

TORCHVISION = {
    "__init__.py": "from torchvision import datasets, models, transforms, utils\n",
    "datasets.py": """
import torch


class MNIST(torch.utils.data.Dataset):
    def __init__(self, root, train=True, download=False, transform=None):
        generator = torch.Generator().manual_seed(int(train))
        self.data = torch.randint(0, 256, (64, 28, 28), dtype=torch.uint8, generator=generator)
        self.targets, self.transform = torch.arange(64) % 10, transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        image = self.data[index]
        return (self.transform(image) if self.transform else image), int(self.targets[index])


class FakeData(torch.utils.data.Dataset):
    def __init__(self, size=8, image_size=(3, 64, 64), transform=None):
        self.size, self.image_size = size, image_size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.rand(self.image_size, generator=torch.Generator().manual_seed(index)), 0
""",
    "transforms.py": """
class ToTensor:
    def __call__(self, image):
        return image.unsqueeze(0).float() / 255


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean[0], std[0]

    def __call__(self, tensor):
        return (tensor - self.mean) / self.std


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image
""",
    "models.py": """
import torch


class resnet18(torch.nn.Module):
    def __init__(self, weights=None):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 7)
        self.avgpool = torch.nn.AdaptiveAvgPool2d(1)
        self.fc = torch.nn.Linear(64, 10)
""",
    "utils.py": """
def save_image(tensor, path, **options):
    with open(path, "wb") as file:
        file.write(tensor.detach().float().cpu().numpy().tobytes())
""",
}
"""Files of a package torchvision that knows what four of pytorch/examples ask of it."""

MODELS = {
    "diffusers/__init__.py": """
import torch


class HiDreamImageTransformer2DModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.final_layer = torch.nn.Linear(4, 4)

    @classmethod
    def from_pretrained(cls, name, subfolder=None):
        return cls()

    def add_adapter(self, config):
        self.lora_A = torch.nn.Linear(4, 2, bias=False)
""",
    "diffusers/utils.py": """
class logging:
    set_verbosity_info = staticmethod(lambda: None)
""",
    "peft.py": "def LoraConfig(**options):\n    return options\n",
    "openai.py": "OpenAI = None\n",
    "gradio.py": """
class _Any:
    def __getattr__(self, name):
        return _Any()

    def __call__(self, *given, **named):
        return _Any()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def __getattr__(name):
    return _Any()
""",
    "huggingface_hub.py": 'def hf_hub_download(repo_id, filename):\n    return "weights/" + filename\n',
    "transformers.py": """
import torch


class PreTrainedTokenizerFast:
    @classmethod
    def from_pretrained(cls, name):
        return cls()


class LlamaForCausalLM(torch.nn.Linear):
    @classmethod
    def from_pretrained(cls, name, torch_dtype=None, **options):
        return cls(2, 2).to(torch_dtype)
""",
    "instruction_refinement.py": "def refine_instruction(src_image, src_instruction):\n    return src_instruction\n",
    "pipeline_hidream_image_editing.py": """
import types

import torch
from PIL import Image


class HiDreamImageEditingPipeline:
    @classmethod
    def from_pretrained(cls, name, transformer=None, text_encoder_4=None, **options):
        self = cls()
        self.parts = [transformer, text_encoder_4]
        return self

    def to(self, device, dtype):
        for part in self.parts:
            part.to(device, dtype)
        return self

    def __call__(self, generator=None, reload_keys=None, image=None, **options):
        transformer = self.parts[0]
        where = transformer.final_layer.weight.device
        drawn = torch.randn(4, generator=generator, device=generator.device).to(where, torch.bfloat16)
        assert torch.isfinite(transformer.final_layer(drawn)).all()
        told = {key: {v.device.type for v in part.values()} for key, part in (reload_keys or {}).items()}
        print("PIPELINE", where.type, transformer.final_layer.weight.dtype, sorted(told))
        return types.SimpleNamespace(images=[image or Image.new("RGB", (8, 8))])
""",
}
"""Files that stand for diffusers, peft, gradio, transformers and the pipeline in HiDream-E1's scripts."""

RUN = """
import os, runpy, sys
os.chdir({folder!r})
sys.argv = {arguments!r}
sys.path.insert(0, os.getcwd())
found = runpy.run_path(sys.argv[0], run_name={name!r})
{then}
from toprope.device import portable
print("DEVICE", portable.name(), portable.max_memory_allocated())
"""
SIM = "import toprope.sim\ntoprope.sim.install('910B3')\n"


def lay(folder: Path, files: dict[str, str]) -> Path:
    """Write files into a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def run(program: Path, *options: str, folder: Path, card: bool, then: str = "", name: str = "__main__") -> str:
    """Run a program on the CPU or the simulated card, and return what it printed; it must succeed.

    The last line is "DEVICE", the name of the device, and the most bytes that were held on it.

    Args:
        program: the file.
        options: what it is given.
        folder: what it imports first; the program runs in its own folder.
        card: whether on the simulated card.
        then: Python that is run behind it, with its names in `found`.
        name: its `__name__`.
    """
    code = RUN.format(folder=str(program.parent), arguments=[program.name, *options], name=name, then=then)
    done = run_anew(SIM + code, folder) if card else run_forked(code, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
