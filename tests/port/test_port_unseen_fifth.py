"""What a fifth round of readers found in repositories that the port had never seen: one test each, by what broke."""

import ast
import json
from pathlib import Path
from textwrap import dedent

import pytest

from toprope.port import port
from toprope.port.project.context import extensions_of
from toprope.port.runtime.placement import Tree
from toprope.port.scan import find, port_files


def ported(text, path="a.py", **given):
    """The program afterwards; a second run must change nothing."""
    done = port(dedent(text).strip("\n").encode() + b"\n", path, **given)
    assert done.skipped == ""
    assert port(done.after, path, **given).after == done.after
    return done.after.decode()


def lines(text, path="a.py"):
    """The codes of what is reported, with the lines."""
    return [(each.rule.code, each.line) for each in port(dedent(text).strip("\n").encode() + b"\n", path).findings]


def project(folder, **files):
    """The files of a project after the port, by their names."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(dedent(text).strip("\n") + "\n")
    return {Path(each.path).stem: each for each in port_files(find([folder]))}


# DataParallel by other names


def test_a_class_that_inherits_from_data_parallel_was_used_on_other_devices(tmp_path) -> None:
    found = project(
        tmp_path,
        parallel="""
        from torch.nn.parallel.data_parallel import DataParallel

        class Replicas(DataParallel):
            def gather(self, outputs, output_device):
                return outputs
        """,
        train="""
        import torch
        from parallel import Replicas

        use_cuda = torch.cuda.is_available()
        model = torch.nn.Linear(2, 2)
        if use_cuda:
            model = Replicas(model).cuda()
        """,
    )
    assert b"portable" not in found["train"].after
    assert ("TR069", 7) in [(each.rule.code, each.line) for each in found["train"].findings]


@pytest.mark.parametrize(
    "line",
    [
        'strategy = "dp" if torch.cuda.is_available() else None',
        'trainer = pl.Trainer(strategy="dp" if torch.cuda.is_available() else "auto")',
        'given = {"strategy": "dp" if torch.cuda.is_available() else "auto"}',
        'if torch.cuda.is_available():\n    self.distributed_backend = "dp"',
    ],
)
def test_the_strategy_of_data_parallel_was_asked_for_on_other_devices(line) -> None:
    text = f"import torch\nimport pytorch_lightning as pl\n\n{line}"
    assert "portable" not in ported(text)
    assert "TR069" in [code for code, _ in lines(text)]


def test_a_text_dp_of_a_program_without_lightning_is_nothing() -> None:
    assert lines('import torch\n\nstrategy = "dp"') == []


# Files that have torch from the file that runs them


def test_a_file_that_does_not_import_torch_was_converted_by_half() -> None:
    before = """
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if torch.cuda.is_available():
            model = model.cuda()
            torch.cuda.synchronize()
        x = torch.ones(3, device="cuda").to("cuda:1")
        """
    assert "portable" not in ported(before)
    assert ("TR102c", 1) in lines(before)


@pytest.mark.parametrize("line", ['torch.load("a.pt")', 'x.to(torch.device("cuda"))', 'torch.amp.autocast("cuda")'])
def test_a_move_was_converted_next_to_a_name_of_a_torch_that_is_not_imported(line) -> None:
    assert "portable" not in ported(f"{line}\nmodel = model.cuda()")


def test_a_torch_that_a_function_imports_or_is_given_is_known() -> None:
    before = """
        def one():
            import torch
            return torch.ones(3).cuda() if torch.cuda.is_available() else None

        def two(torch):
            return torch.cuda
        """
    assert "portable.is_available()" in ported(before)


# Attributes of classes


READ_AS_TABLE = {
    "the class's own table": """
        class Options:
            device = "cuda"

            @classmethod
            def table(cls):
                return {name: value for name, value in cls.__dict__.items() if isinstance(value, str)}
        """,
    "vars": 'class Options:\n    device = "cuda"\n\nprint(vars(Options))',
    "a metaclass": """
        class Meta(type):
            def __new__(mcs, name, bases, space):
                space["fields"] = {key: value for key, value in space.items() if isinstance(value, str)}
                return super().__new__(mcs, name, bases, space)

        class Options(metaclass=Meta):
            device = "cuda"
        """,
    "the class of a dataclass": """
        from dataclasses import dataclass

        @dataclass
        class Options:
            device: str = "cuda"

        print(Options.device)
        """,
    "the fields of a dataclass": """
        from dataclasses import dataclass, field, fields

        @dataclass
        class Options:
            device: str = field(default="cuda")

        defaults = {each.name: each.default for each in fields(Options)}
        """,
}


@pytest.mark.parametrize("text", READ_AS_TABLE.values(), ids=READ_AS_TABLE)
def test_an_attribute_of_a_class_was_no_text_any_more_for_what_reads_the_class(text) -> None:
    assert "portable" not in ported(text)
    assert "TR019c" in [code for code, _ in lines(text)]


def test_an_attribute_of_a_dataclass_that_another_file_reads_was_gone(tmp_path) -> None:
    found = project(
        tmp_path,
        options='from dataclasses import dataclass\n\n@dataclass\nclass Options:\n    device: str = "cuda"\n',
        run="from options import Options\n\nprint(Options.device)\n",
        base="class Base:\n    def table(self):\n        return dict(type(self).__dict__)\n",
        own='from base import Base\n\nclass Own(Base):\n    device = "cuda"\n',
    )
    assert b"portable" not in found["options"].after
    assert b"portable" not in found["own"].after


def test_a_question_in_front_of_an_attribute_that_stays_was_converted() -> None:
    before = """
        import torch

        class Options:
            device = "cuda"

        print(vars(Options))
        torch.zeros(1).to(Options.device if torch.cuda.is_available() else "cpu")
        """
    assert "portable" not in ported(before)


# Texts that name a file, and those that are saved


@pytest.mark.parametrize(
    "line",
    [
        "open(f\"log_{'cuda' if torch.cuda.is_available() else 'cpu'}.txt\", \"w\")",
        'torch.save({}, "m_" + ("cuda" if torch.cuda.is_available() else "cpu") + ".pt")',
        'json.dump({"device": "cuda" if torch.cuda.is_available() else "cpu"}, file)',
    ],
)
def test_the_text_of_a_file_kept_the_device_back(line) -> None:
    after = ported(f"""
        import json, torch

        {line}
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = torch.nn.Linear(2, 2).to(device)
        if torch.cuda.is_available():
            model(torch.ones(2).cuda())
        """)
    assert line in after
    assert "device = portable.device()" in after
    assert "torch.ones(2).to(portable.device())" in after


@pytest.mark.parametrize(
    "line",
    [
        'torch.save({"model": model.state_dict(), "device": "cuda"}, path)',
        'json.dump(dict(device="cuda"), file)',
        'state = {"device": "cuda:0", "step": 1}\npickle.dump(state, file)',
    ],
)
def test_the_name_of_the_device_in_use_was_saved(line) -> None:
    assert ported(f"import json, pickle, torch\n\n{line}").endswith(f"{line}\n")


def test_a_table_that_the_program_reads_itself_has_the_device_in_use() -> None:
    after = ported('import json\n\noptions = {"device": "cuda"}\njson.dump(options, file)\nx.to(options["device"])')
    assert '{"device": portable.name()}' in after


# --vendor


def test_a_setup_that_installs_no_package_was_taken_for_one_that_does(tmp_path) -> None:
    nms = tmp_path / "lib" / "model" / "nms"
    nms.mkdir(parents=True)
    for folder in (nms, nms.parent):
        (folder / "__init__.py").touch()
    setup = "from setuptools import Extension, setup\n\nsetup(name='own', ext_modules=[Extension('own', ['own.c'])])\n"
    (tmp_path / "lib" / "setup.py").write_text(setup)
    script = nms / "build.py"
    script.write_text("import torch\n\nif __name__ == '__main__':\n    print(torch.ones(2).cuda())\n")
    assert Tree([tmp_path], find([tmp_path])).place(script).module == "toprope_portable"
    (tmp_path / "lib" / "setup.py").write_text(setup.replace("name=", "packages=['model.nms'], name="))
    assert Tree([tmp_path], find([tmp_path])).place(script).module == "model.toprope_portable"


# Questions whose code is not seen to be right on other devices


@pytest.mark.parametrize(
    "block",
    [
        "from .fast import run\n    run(torch.ones(2).cuda())",
        "import fused_kernels\n    x = torch.ones(2).cuda()",
        'import subprocess\n    subprocess.run(["./bench", "--cuda"])\n    torch.cuda.synchronize()',
        'os.system("nvprof ./run")\n    torch.cuda.synchronize()',
        "sources.append('fast.cpp')\n    run(sources)",
    ],
)
def test_a_question_was_converted_whose_code_is_not_known_to_be_right_on_other_devices(block) -> None:
    for question in ("torch.cuda.is_available()", "torch.cuda.device_count() > 0"):
        before = f"import os, torch\n\nif {question}:\n    {block}\n"
        assert ported(before) == before
        assert any(each.held_back for each in port(before.encode()).findings)


@pytest.mark.parametrize(
    "text",
    [
        'device = "cuda" if torch.cuda.is_available() else "cpu"',
        "if torch.cuda.is_available():\n    model = build(model).cuda()",
        "use_cuda = torch.cuda.is_available()\nif use_cuda:\n    print('GPU')\n    torch.cuda.manual_seed(0)",
        "workers = 4 if torch.cuda.is_available() else 0",
        "import time\nif torch.cuda.is_available():\n    import random\n    torch.cuda.synchronize()",
    ],
)
def test_a_question_with_converted_places_behind_it_is_converted(text) -> None:
    assert "torch.cuda" not in ported(f"import torch\n\n{text}")


# Data parallel of mmcv, notebooks, options, assertions


def test_data_parallel_of_mmcv_was_not_named() -> None:
    text = """
        import torch
        from mmcv.parallel import MMDataParallel, MMDistributedDataParallel

        if torch.cuda.is_available():
            model = MMDataParallel(model.cuda(0), device_ids=[0])
        else:
            model = MMDistributedDataParallel(model)
        """
    assert "portable" not in ported(text)
    assert [line for code, line in lines(text) if code == "TR069"] == [5, 7]


def test_a_notebook_was_taken_for_a_module_that_others_import(tmp_path) -> None:
    cell = {"cell_type": "code", "source": DEVICE, "metadata": {}, "outputs": [], "execution_count": None}
    book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "MNIST.ipynb").write_text(json.dumps(book))
    found = project(tmp_path, MNIST2=DEVICE, data="from torchvision.datasets import MNIST, MNIST2\n", test_net=PATCHES)
    assert b"portable.name()" in found["MNIST"].after
    assert b"portable.name()" in found["MNIST2"].after


DEVICE = 'import torch\n\ndevice = "cuda" if torch.cuda.is_available() else "cpu"\n'
PATCHES = """
    from unittest.mock import patch
    import pytest
    import torch

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
    def test_one():
        assert make([1.0], device="cuda").sum() == 1

    def test_two():
        if not torch.cuda.is_available():
            return
        x = torch.ones(2).to("cuda") + torch.ones(2).cuda()

    def test_three():
        with patch("torch.cuda.is_available", lambda: False):
            assert not torch.cuda.is_available()
    """


def test_what_is_behind_a_question_that_a_test_replaces_was_converted() -> None:
    assert "portable" not in ported(PATCHES, "tests/test_net.py")


def test_a_tensor_by_the_name_of_options_was_resolved() -> None:
    after = ported("""
        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda")

        def run(model):
            p = next(model.parameters())
            for h in model.parameters():
                move(p.device, h.device)

        p = parser.parse_args()
        move(p.device)
        """)
    assert after.count("portable.resolve(p.device)") == 1
    assert "move(p.device, h.device)" in after


def test_an_assertion_about_a_device_that_is_resolved_is_named() -> None:
    done = port(b'def test_it():\n    assert model.device == "cuda:42"\n', "tests/test_cli.py")
    assert "not all that it is for is seen to be converted" in done.findings[0].held_back


def test_an_extension_for_the_cpu_was_taken_for_one_of_cuda() -> None:
    tree = ast.parse("setup(ext_modules=[CppExtension('own.cpu', ['a.cpp']), CUDAExtension('own.gpu', ['a.cu'])])")
    assert extensions_of(tree) == {"gpu"}
