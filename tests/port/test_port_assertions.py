"""Promises of the port about names, packages and indices, on excerpts of our own writing.

Holds docs/port.md: each promise there has a test.
"""

import ast

import pytest

from toprope.port.engine import port

# What stands there, and what the rewrite says with the rank 3: the device's index or name goes on as it was.
FORMS = [
    ('torch.device("cuda", r)', 3),
    ('torch.device(f"cuda:{r}")', 3),
    ('torch.device("cuda:%d" % r)', 3),
    ('torch.device("cuda:{}".format(r))', 3),
    ('torch.device("cuda:" + str(r))', 3),
    ('torch.device("cuda:1")', 1),
    ("torch.device(0)", 0),
    ("x.cuda(r)", 3),
    ("x.cuda(device=r)", 3),
    ('x.to(f"cuda:{r}")', 3),
    ('x.to("cuda:1", non_blocking=True)', 1),
    ("x.to(0)", 0),
    ("torch.load(f, map_location=lambda s, l: s.cuda(r))", 3),
    ('torch.load(f, map_location={"cuda:0": "cuda:%d" % r})', "cuda:3"),
    ('torch.load(f, map_location=f"cuda:{r}")', "cuda:3"),
    ('torch.load(f, map_location="cuda:" + str(r))', "cuda:3"),
    ('torch.cuda.set_device(f"cuda:{r}")', "cuda:3"),
    ("load_file(f, device=0)", 0),
]


class Recorder:
    """Stands for the runtime module, and whatever else is called: notes what it is asked for."""

    def __init__(self):
        self.asked = []

    def device(self, spec=None):
        self.asked.append(spec)
        return self

    name = set_device = device

    def __getattr__(self, name):
        return lambda *arguments, **keywords: self


@pytest.mark.parametrize("runtime", ["toprope.device.portable", "toprope_portable"])
def test_the_index_goes_on(runtime):
    for form, wanted in FORMS:
        text = f"import torch\nfrom safetensors.torch import load_file\n\ny = {form}\n"
        done = port(text.encode(), runtime=runtime)
        assert all(each.converted for each in done.findings if each.kind == "P"), form
        *imports, statement = ast.parse(done.after).body
        assert any(runtime.rpartition(".")[2] in ast.unparse(each) for each in imports)
        recorder = Recorder()
        names = {"portable": recorder, "torch": recorder, "x": recorder, "load_file": recorder.load_file}
        exec(ast.unparse(statement), names | {"r": 3, "f": 0})
        assert recorder.asked == [wanted], form


PACKAGES = """\
import torch
import triton
import triton.language as tl
import bitsandbytes as bnb
import xformers.ops
from apex import amp
import pynvml
from torch.utils.cpp_extension import load
from flash_attn import flash_attn_func, flash_attn_varlen_func

op = load(name="op", sources=["op.cpp", "op_kernel.cu"])
y = flash_attn_func(q, k, v)
"""


def test_packages_for_cuda_alone_are_said_with_place_reason_and_advice():
    done = port(PACKAGES.encode())
    said = {each.line: each for each in done.findings}
    assert set(said) >= {2, 3, 4, 5, 6, 7, 9, 11}
    for each in done.findings:
        assert each.kind in ("R", "N")
        assert len(each.rule.why) > 40
    assert {line for line, each in said.items() if each.kind == "N"} >= {2, 3, 4, 6, 7, 11}
    assert (
        b"except ImportError:\n    from toprope.device.portable import flash_attn_func"
        in port(PACKAGES.replace(", flash_attn_varlen_func", "").encode()).after
    )


def test_a_fallback_of_a_vendored_port_comes_from_the_vendored_file():
    after = port(PACKAGES.replace(", flash_attn_varlen_func", "").encode(), runtime="toprope_portable").after
    assert b"    from toprope_portable import flash_attn_func" in after
    assert b"toprope.device" not in after


def test_names_under_which_torch_cuda_is_imported():
    text = (
        "import torch\nfrom torch.cuda.amp import autocast as ac, GradScaler\nimport torch.cuda as tc\n"
        "from torch import cuda\nimport torch.amp as a\n\nwith ac(dtype=torch.float16):\n    tc.synchronize()\n"
        "with a.autocast('cuda'):\n    cuda.empty_cache()\nscaler = GradScaler()\n"
    )
    after = port(text.encode()).after.decode()
    assert "torch.cuda" not in after
    assert "from torch import cuda" not in after
    assert "portable.synchronize()" in after
    assert "portable.empty_cache()" in after
    assert "from toprope.device.portable import autocast as ac, GradScaler" in after
    assert "'cuda'" not in after
