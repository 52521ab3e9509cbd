"""What a fifth round of readers found in repositories that the port had never seen: one test each, by what broke."""

from pathlib import Path
from textwrap import dedent

import pytest

from toprope.port import port
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
