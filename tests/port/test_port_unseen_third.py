"""Faults that a third round of readers found in ports of unseen repositories: one test each, by what broke."""

from textwrap import dedent

import pytest
import torch

from toprope.port import port
from toprope.port.files.kinds import FileKind
from toprope.port.files.text import port_text


def ported(text):
    """The program afterwards; a second run must change nothing."""
    done = port(dedent(text).strip("\n").encode() + b"\n")
    assert done.skipped == ""
    assert port(done.after).after == done.after
    return done.after.decode()


SKIPPED = """
    import pytest, torch

    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_one(device):
        if {test}:
            pytest.skip("no GPU")
        torch.ones(3, device=device)
"""


@pytest.mark.parametrize(
    "test",
    [
        'not torch.cuda.is_available() and device == "cuda"',
        'device == "cuda" and not torch.cuda.is_available()',
        'not (torch.cuda.is_available() or device != "cuda")',
        '(not torch.cuda.is_available()) and True and device == "cuda"',
    ],
)
def test_a_question_in_front_of_a_comparison_that_stays_was_converted(test) -> None:
    assert "portable" not in ported(SKIPPED.format(test=test))


GRAPH = """
    import sys, pytest, torch

    class Tests:
        def test_graph(self):
            if not torch.cuda.is_available():
                {end}
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                pass

        def test_plain(self):
            if not torch.cuda.is_available():
                {end}
            torch.ones(3).cuda()
"""


@pytest.mark.parametrize(
    "end", ['pytest.skip("no GPU")', 'pytest.xfail("no GPU")', 'self.skipTest("no GPU")', "sys.exit(0)"]
)
def test_a_test_that_is_skipped_was_opened_for_a_graph_of_cuda(end) -> None:
    after = ported(GRAPH.format(end=end))
    assert after.count("torch.cuda.is_available()") == 1
    assert after.count("portable.is_available()") == 1
    assert after.index("torch.cuda.is_available()") < after.index("portable.is_available()")


def test_a_method_that_asks_whether_it_is_scripted_was_rewritten_where_it_is() -> None:
    """The method has no types, and is scripted from another file, through an attribute of a model."""
    before = """
        import torch

        class Out(torch.nn.Module):
            def reduce(self, x, batch):
                if self.flag:
                    pass
                elif torch.jit.is_scripting():
                    if not x.is_cuda:
                        x = x + 1
                return x
        """
    assert "portable" not in ported(before)


@pytest.mark.parametrize(
    "line",
    [
        'os.environ["DEVICE"] = "cpu" if os.environ.get("USE_CPU") else "cuda"',
        'os.environ["DEVICE"] = "cuda"',
        'os.environ.setdefault("DEVICE", "cuda")',
        'os.putenv("DEVICE", "cuda")',
    ],
)
def test_a_variable_of_the_environment_got_a_name_that_nobody_compares_it_with(line) -> None:
    before = f"""
        import os, torch

        {line}

        def place():
            return torch.ones(3).cuda() if os.getenv("DEVICE") == "cuda" else torch.ones(3)
        """
    assert line in ported(before)


def test_a_list_asked_for_a_release_of_torchtext_that_was_never_made() -> None:
    before = b"torch==1.11\ntorchtext==0.12\ntorchvision==0.12\nflash-attn\n"
    done = port_text(before, "requirements.txt", FileKind.REQUIREMENTS)
    lines = [line for line in done.companion[1].decode().splitlines() if not line.startswith("#")]
    assert lines == ["torch>=2.10", "torchtext==0.12", "torchvision>=0.25", "toprope"]
    assert any("0.18 is its last release" in each.said for each in done.findings)


@pytest.mark.parametrize(
    "read",
    [
        "return pickle.load(f) if torch.cuda.is_available() else Cpu(f).load()",
        "if torch.cuda.is_available():\n            return pickle.load(f)\n        return Cpu(f).load()",
        "if not torch.cuda.is_available():\n            return Cpu(f).load()\n        return joblib.load(f)",
    ],
)
def test_storages_of_cuda_were_unpickled_where_there_is_none(read) -> None:
    before = f"""
    import joblib, pickle, torch

    def load(f):
        {read}
    """
    assert "portable" not in ported(before)


def test_the_default_tensor_type_of_cuda_is_set_as_the_program_sets_it(monkeypatch) -> None:
    """torch.Tensor(...) follows torch.set_default_tensor_type, and not torch.set_default_device."""
    from toprope.device import _portable_runtime as runtime

    called = []
    monkeypatch.setattr(runtime, "_chosen", lambda: torch.device("cuda"))
    monkeypatch.setattr(runtime, "kind", lambda: "cuda")
    monkeypatch.setattr(torch, "set_default_tensor_type", called.append)
    monkeypatch.setattr(torch, "set_default_device", called.append)
    runtime.set_default_tensor_type(torch.float32)
    assert called == [torch.cuda.FloatTensor]
