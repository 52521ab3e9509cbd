"""What readers of the state of 1 December found in programs that the port had not seen, each as a kind."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

from toprope.port.engine import port
from toprope.port.notebook import port_notebook
from toprope.port.project.context import Context
from toprope.port.runtime.vendor import plan
from toprope.port.runtime.vendor import text as runtime
from toprope.port.scan import find, port_files

CHOICE = '"cuda" if torch.cuda.is_available() else "cpu"'


def looked_at(text: str):
    return port(dedent(text).strip("\n").encode() + b"\n", "a.py")


def ported(text: str) -> str:
    return looked_at(text).after.decode()


def files(folder, **texts: str):
    """The port of several files of a program, by their names."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(dedent(text).strip("\n") + "\n")
    return {each.path.rpartition("/")[2].removesuffix(".py"): each for each in port_files(find([folder]))}


def test_a_cell_that_imports_torch_had_no_import_behind_one_that_is_left_over() -> None:
    """Autoformer: who began with the second cell had no `portable`, on CUDA either."""
    cells = [
        "exp = Exp(args)\ntorch.load(path)\n",
        "import torch\nprint(torch.cuda.device_count())",
        "import os\nimport torch as th\nth.cuda.set_device(0)",
        "x.cuda()",
    ]
    book = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    for each in cells:
        cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": each}
        book["cells"].append(cell)
    line = "from toprope.device import portable\n"
    after = port_notebook(json.dumps(book).encode(), "a.ipynb").after
    done = [each["source"] for each in json.loads(after)["cells"]]
    assert done[0].startswith(line)
    assert done[1].startswith(f"import torch\n{line}print(portable.")
    assert done[2].startswith(f"import os\nimport torch as th\n{line}portable.")
    assert done[3] == "x.to(portable.device())"
    assert port_notebook(after, "a.ipynb").after == after
    book["cells"] = book["cells"][1:]
    done = [each["source"] for each in json.loads(port_notebook(json.dumps(book).encode(), "a.ipynb").after)["cells"]]
    assert "".join(done).count(line) == 1


@pytest.mark.parametrize("call", [
    "torch.hub.load_state_dict_from_url(url=where, progress=False)", "torch.load(f=where, weights_only=True)",
])  # fmt: skip
def test_a_file_that_is_given_by_name_was_loaded_to_cuda(call) -> None:
    assert f"{call[:-1]}, map_location=portable.map_location)" in ported(f"import torch\nstate = {call}\n")


def test_a_group_of_gloo_whose_tensors_are_on_cards_had_no_line() -> None:
    """MeloTTS: DDP raises on an NPU, since gloo has none."""
    text = 'import torch, torch.distributed as dist\ndist.init_process_group(backend="gloo")\n'
    assert looked_at(text).findings == []
    done = looked_at(f"{text}torch.cuda.set_device(rank)\nnet = DDP(net, device_ids=[rank])\n")
    assert [each.said for each in done.findings if each.line == 2] == [
        '"gloo" takes tensors of CUDA and of no other accelerator: portable.dist_backend() for those on the device'
    ]
    assert {each.label for each in done.findings if each.converted} == {"R"}


@pytest.mark.parametrize("made", [
    "class W(faster_whisper.WhisperModel):\n    pass",
    "class W(faster_whisper.WhisperModel):\n    def __init__(self, name, device):\n"
    "        super().__init__(name, device=device)",
    "def W(name, device):\n    return faster_whisper.WhisperModel(name, device)",
])  # fmt: skip
def test_a_choice_went_to_a_class_of_another_engine_in_another_file(tmp_path, made) -> None:
    """whisperX: ctranslate2 knows CUDA and the CPU, and raised for "npu"."""
    done = files(
        tmp_path,
        asr=f"import faster_whisper\n{made}\n\ndef load(device):\n    return W('tiny', device=device)\n",
        tool=f"import torch\nfrom asr import W, load\n\nload({CHOICE})\nW('tiny', {CHOICE})\n",
    )
    assert "portable" not in done["tool"].after.decode()


def test_the_device_of_an_object_of_another_engine_was_asked_for_an_npu() -> None:
    text = (
        "import torch\nfrom ctranslate2.models import Whisper\ndef run(self):\n    return self.model.device == 'cuda'\n"
    )
    assert "portable" not in ported(text)
    assert "portable.is_named" in ported(text.replace("from ctranslate2.models", "from mine"))


def test_a_program_without_torch_got_an_import_of_it(tmp_path) -> None:
    """faster-whisper has no torch at all."""
    done = files(tmp_path, a="def f(device):\n    return device == 'cuda' or 'cuda' in device\n", b="x = 1\n")
    assert "portable" not in done["a"].after.decode()
    assert not Context.of([tmp_path / "a.py"]).has_torch
    done = files(tmp_path, b="import torch\n", a="def f(device):\n    return device == 'cuda' or 'cuda' in device\n")
    assert done["a"].after.decode().count("portable.is_") == 2


def test_a_class_that_is_pickled_with_its_source_had_no_line() -> None:
    """eg3d: a checkpoint of the ported program could not be loaded by the one that is not."""
    text = """
    from torch_utils import persistence

    @persistence.persistent_class
    class Net(Module):
        def forward(self, x):
            return x.half() if x.is_cuda else x
    """
    said = [each.said for each in looked_at(text).findings if each.rule.code == "TR123"]
    assert said == ["each pickle has the source of this module: who loads one needs the runtime module of the port"]


def test_a_default_with_a_condition_was_a_question_at_the_import() -> None:
    """tortoise-tts: importing it started CUDA, where nothing had been asked."""
    other = "torch.backends.mps.is_available()"
    text = f"import torch\ndef f(x, device='cuda' if not {other} else 'mps'):\n    return x.to(device)\n"
    done = looked_at(text)
    assert "portable" not in done.after.decode()
    assert "a default is evaluated when the module is imported" in done.findings[0].held_back
    asked = f"import torch\ndef f(x, device={CHOICE}):\n    return x.to(device)\n"
    assert "device=portable.name()" in ported(asked)


def test_autocast_by_a_choice_of_its_kind_was_said_to_be_safe() -> None:
    other = "torch.backends.mps.is_available()"
    kind = f"device_type='cuda' if not {other} else 'mps'"
    text = f"import torch\nwith torch.autocast({kind}, dtype=torch.float16):\n    f()\n"
    (found,) = [each for each in looked_at(text).findings if each.converted]
    assert found.label == "R"
    assert found.said.endswith("autocast for CUDA is off on the CPU, and this one is on")


def test_a_tensor_called_top_p_was_taken_for_options(tmp_path) -> None:
    """fish-speech: `torch.ones(2, device=top_p.device)`."""
    done = files(
        tmp_path,
        cli="import argparse\np = argparse.ArgumentParser()\np.add_argument('--device', default='cuda')\n"
        "args = p.parse_args()\nrun(args.device)\n",
        model="import torch\ndef f(top_p):\n    return torch.ones(2, device=top_p.device)\n",
    )
    assert "portable" not in done["model"].after.decode()


def test_a_vendored_copy_was_looked_for_in_an_installed_package(tmp_path) -> None:
    """fish-speech: `dac` is a folder of models there, and the program imports descript-audio-codec's `dac.model`."""
    folder = tmp_path / "fish" / "models" / "dac"
    folder.mkdir(parents=True)
    (tmp_path / "fish" / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("")
    (folder / "codec.py").write_text("from dac.model.base import A\nimport torch\ntorch.ones(2).cuda()\n")
    (tmp_path / "main.py").write_text("from fish.models.dac.codec import A\n")
    paths = find([tmp_path])
    planned = plan([tmp_path], paths, "")
    assert planned is not None
    assert planned.module(folder / "codec.py") != "dac.toprope_portable"


def test_the_port_followed_what_a_vendored_copy_imports(tmp_path) -> None:
    """eg3d: `portable.Stream` was a place of CUDA's again after the port with --vendor."""
    (tmp_path / "toprope_portable.py").write_bytes(runtime())
    done = files(tmp_path, a="import toprope_portable as portable\ns = portable.Stream()\ne = portable.Event()\n")
    assert done["a"].findings == []


@pytest.mark.parametrize("fill", ["state[k] = v.cuda()", "state.update(k=v.cuda())"])
def test_a_dictionary_that_is_filled_was_taken_for_one_of_the_cpu(fill) -> None:
    """stargan-v2: a checkpoint was loaded to CUDA, and no line said so."""
    text = f"import torch\nstate = {{}}\n{fill}\ntorch.save(state, path)\nback = torch.load(path)\n"
    assert "torch.load(path, map_location=portable.map_location)" in ported(text)
    kept = "import torch\nstate = {'a': torch.ones(2)}\ntorch.save(state, path)\nback = torch.load(path)\n"
    assert ported(kept) == kept


def test_a_decorator_asked_for_the_device_at_the_import() -> None:
    """kornia, pull request 4624: custom_fwd for CUDA does nothing on an NPU; it must not ask at the import either."""
    text = (
        "import torch\n@torch.amp.custom_fwd(device_type='cuda', cast_inputs=torch.float32)\ndef f(x):\n    return x\n"
    )
    assert "@portable.custom_fwd(cast_inputs=torch.float32)" in ported(text)
    done = looked_at("import torch\n@register(device='cuda')\ndef f(x):\n    return x\n")
    assert "portable" not in done.after.decode()
    assert "a decorator is evaluated when the module is imported" in done.findings[0].held_back


def test_a_move_to_the_host_was_no_part_of_the_decision() -> None:
    """cycle-gan: the device was converted, and the move back to the host was not."""
    text = f"import torch\ndevice = torch.device({CHOICE})\ndef data(x):\n    if torch.cuda.is_available():\n"
    after = ported(f"{text}        x = x.cpu()\n    return x.numpy()\n")
    assert "    if portable.is_available():" in after


@pytest.mark.parametrize("number", ["int(os.environ['LOCAL_RANK'])", "gpus[0]", "dist.get_rank()"])
def test_a_number_was_computed_on_the_cpu_too(number) -> None:
    """spvnas: there is no such variable, list or group without CUDA."""
    text = f"import torch\nd = torch.device('cuda:%d' % {number} if torch.cuda.is_available() else 'cpu')\n"
    assert f"portable.name({number}) if portable.is_available() else 'cpu'" in ported(text)
    assert "d = portable.device(rank)" in ported(text.replace(number, "rank"))


def test_a_cell_to_be_filled_in_decides_about_the_device() -> None:
    """Udacity's exercises: what a student writes there goes by CUDA."""
    cells = [f"import torch\ndevice = {CHOICE}\nnet.to(device)", "w = \nx = 'cuda' if net.w.is_cuda else 'cpu'"]
    book = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    for each in cells:
        cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": each}
        book["cells"].append(cell)
    data = json.dumps(book).encode()
    assert port_notebook(data, "a.ipynb").after == data


def test_what_runs_for_cuda_or_by_a_wish_is_not_cudas_alone() -> None:
    """Nothing held that `or` needs every side to be about CUDA."""
    text = """
    import torch
    if torch.cuda.is_available():
        if torch.version.cuda is not None or force:
            f = torch.cuda.jiterator._create_jit_fn(code)
    """
    assert "if torch.cuda.is_available():" in ported(text)


def test_an_assertion_is_converted_where_what_follows_has_another_way() -> None:
    text = "import torch\nassert torch.cuda.is_available()\nname = 'cuda_run'\nx = x.cuda()\nf(device_name='cudart')\n"
    assert "assert portable.is_available()" in ported(text)
