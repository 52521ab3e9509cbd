"""Conditions that stay together with their code, defaults that are resolved at use, arguments that the runtime takes.

Holds `port.conditions.guards`, `port.rules.defaults` and `port.runtime.stand_ins`.
"""

import argparse
import ast
import inspect
import os
import subprocess
import sys

import pytest
import torch

from toprope.port.conditions.guards import QUESTIONS, RUNS
from toprope.port.engine import port
from toprope.port.registry import all_rules, table
from toprope.port.runtime.stand_ins import refused, signatures

BEGIN = "import os\nimport torch\nimport torch.distributed as dist\n\n"


def ported(text, **options):
    done = port((BEGIN + text).encode(), **options)
    assert not done.skipped
    assert port(done.after, **options).after == done.after
    return done


def body(done):
    return done.after.decode().split("\n\n", 1)[1]


# Conditions


GUARDED = [
    "T = torch.cuda.CUDAGraph if torch.cuda.is_available() else torch.FloatTensor\n",
    "T = torch.FloatTensor if not torch.cuda.is_available() else torch.cuda.CUDAGraph\n",
    "T = torch.FloatTensor if os.name == 'nt' or not torch.cuda.is_available() else torch.cuda.CUDAGraph\n",
    "if torch.cuda.is_available() and os.name != 'nt':\n    x.cuda()\n    torch.cuda.cudart()\n",
    "if torch.cuda.is_available() is False:\n    pass\nelse:\n    torch.cuda.cudart()\n",
    "if torch.cuda.device_count() > 1:\n    torch.cuda.cudart()\n",
    "if 0 == torch.cuda.device_count():\n    pass\nelse:\n    torch.cuda.cudart()\n",
    "def f(x):\n    if not torch.cuda.is_available():\n        return x\n    return torch.cuda.CUDAGraph()\n",
    "def f(x):\n    if torch.cuda.is_available():\n        g()\n    else:\n        return\n    torch.cuda.cudart()\n",
    "for x in y:\n    if not torch.cuda.is_available():\n        continue\n    torch.cuda.cudart()\n",
    "cuda = torch.cuda.is_available()\nT = torch.cuda.CUDAGraph if cuda else torch.FloatTensor\n",
    "cuda = True if torch.cuda.is_available() else False\nif cuda:\n    x.cuda()\n    torch.cuda.cudart()\n",
    "args.cuda = not args.no_cuda and torch.cuda.is_available()\nif args.cuda:\n    torch.cuda.cudart()\n",
    "o['cuda'] = torch.cuda.is_available()\nif o['cuda']:\n    torch.cuda.cudart()\n",
    "a = b = torch.cuda.is_available()\nif b:\n    torch.cuda.cudart()\n",
    "if (cuda := torch.cuda.is_available()):\n    pass\nif cuda:\n    torch.cuda.cudart()\n",
    "def has():\n    return torch.cuda.is_available()\n\n\nif has():\n    torch.cuda.cudart()\n",
    "class A:\n    @property\n    def has(self):\n        return torch.cuda.is_available()\n\n    def f(self):\n"
    "        if self.has:\n            torch.cuda.cudart()\n",
    "def f(cuda=torch.cuda.is_available()):\n    if cuda:\n        torch.cuda.cudart()\n",
    "p.add_argument('--use-gpu', default=torch.cuda.is_available())\na = p.parse_args()\n"
    "if a.use_gpu:\n    torch.cuda.cudart()\n",
    "@skip(not torch.cuda.is_available())\ndef test():\n    torch.cuda.cudart()\n",
    "torch.cuda.is_available() and torch.cuda.cudart()\n",
    "not torch.cuda.is_available() or torch.cuda.cudart()\n",
    "x = [torch.cuda.cudart() for y in z if torch.cuda.is_available()]\n",
    "devices = ['cpu']\nif torch.cuda.is_available():\n    devices.append('cuda')\n",
    "if torch.cuda.is_available():\n    from apex import amp\n",
    "if torch.cuda.is_available():\n    x.cuda(*where)\n",
    "if any([torch.cuda.is_available(), y]):\n    torch.cuda.cudart()\n",
    "while torch.cuda.is_available():\n    torch.cuda.cudart()\n",
    "if not torch.cuda.is_available():\n    raise OSError\ntorch.cuda.cudart()\n",
    "assert torch.cuda.is_available()\ntorch.cuda.cudart()\n",
]


@pytest.mark.parametrize("text", GUARDED)
def test_a_question_stays_with_what_it_guards(text):
    done = ported(text)
    assert done.after.decode() == BEGIN + text
    asked = [each for each in done.findings if each.rule.code in QUESTIONS]
    assert asked
    assert all(each.kind == "R" for each in asked)
    assert all("stays CUDA's" in each.held_back for each in asked)


CONVERTED = [
    ("if torch.cuda.is_available():\n    x.cuda()\n    torch.backends.cudnn.benchmark = True\n", "if portable.is"),
    ("if torch.cuda.is_available():\n    print('cuda')\n", "portable.is_available"),
    ("if torch.cuda.is_available():\n    x['cuda'] = 1\n    torch.cuda.synchronize()\n", "portable.is_available"),
    ("if torch.cuda.is_available():\n    pass\nelse:\n    torch.cuda.cudart()\n", "portable.is_available"),
    ("if not torch.cuda.is_available():\n    raise OSError\nif x:\n    torch.cuda.cudart()\n", "portable.is_available"),
    ("if torch.cuda.is_available() and torch.version.cuda:\n    torch.cuda.cudart()\n", "torch.version.cuda"),
    ("if torch.cuda.is_available():\n    if torch.cuda.get_device_capability() > (7,):\n        torch.cuda.cudart()\n",
     "if portable.is_available"),
    ("if torch.cuda.is_available():\n    x.cuda()\n    try:\n        import apex\n    except ImportError: a = 0\n",
     "portable.is_available"),
    ("b = 'nccl' if torch.cuda.is_available() else 'gloo'\ndist.init_process_group(backend='nccl' if c else b)\n",
     "backend=portable.dist_backend() if c else b"),
    ("def backend():\n    return 'nccl' if torch.cuda.is_available() else 'gloo'\n", "return portable.dist_back"),
    ("if (use := torch.cuda.is_available()):\n    x.cuda()\n", "portable.is_available"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), CONVERTED)
def test_a_question_is_converted_where_nothing_below_it_fails_elsewhere(text, wanted):
    assert wanted in body(ported(text))


def test_a_backend_is_converted_wherever_it_is_given():
    for text in (
        "dist.init_process_group('nccl' if torch.cuda.is_available() else 'gloo')\n",
        "k = Kwargs(backend='gloo' if os.name == 'nt' or not torch.cuda.is_available() else 'nccl')\n",
        "self.backend: str = 'nccl' if torch.cuda.is_available() else 'gloo'\n",
        "backend = x or 'nccl'\n",
    ):
        done = body(ported(text))
        assert "nccl" not in done
        assert "torch.cuda" not in done


def test_an_inner_condition_that_stays_does_not_hold_back_the_outer_one():
    text = (
        "if torch.cuda.is_available():\n    x.cuda()\n    if torch.cuda.is_available():\n        torch.cuda.cudart()\n"
    )
    assert body(ported(text)) == (
        "if portable.is_available():\n    x.to(portable.device())\n    if torch.cuda.is_available():\n"
        "        torch.cuda.cudart()\n"
    )  # fmt: skip


def test_a_comment_says_that_a_place_is_fine_and_an_option_that_it_stays():
    text = "if torch.cuda.is_available():\n    torch.cuda.cudart(){}\n"
    assert "portable.is_available" in body(ported(text.format("  # toprope: ignore")))
    text = "b = 'nccl' if torch.cuda.is_available() else 'gloo'\nbackend = 'nccl' if torch.cuda.is_available() else b\n"
    done = port((BEGIN + text).encode(), leave=lambda each: each.rule.code == "TR064")
    assert "portable" not in done.after.decode()


def test_all_names_of_an_import_stay_with_the_question():
    text = (
        "from torch.cuda import is_available, synchronize\nif is_available():\n    torch.cuda.cudart()\nsynchronize()\n"
    )
    assert body(ported(text)) == text


def test_the_rules_that_conditions_know_are_there():
    assert all_rules().keys() >= QUESTIONS
    assert all_rules().keys() >= RUNS
    assert not QUESTIONS & RUNS


# Defaults


def run_here(text, **more):
    """Run a ported program in a process of its own, where every probe of a device is counted."""
    program = (
        "import torch\nprobes = []\nasked = torch.cuda.is_available\n"
        "torch.cuda.is_available = lambda: probes.append(1) or asked()\n" + text
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300,
        env=os.environ | {"TOPROPE_DEVICE": "cpu"} | more,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


DEFAULTS = """\
import argparse
from dataclasses import dataclass
import torch

DEVICE = "cuda"


class Trainer:
    device = "cuda:1"
    where = None


@dataclass
class Options:
    device: str = "cuda"


def run(device="cuda", *, other_device=torch.device("cuda", 1), backend="nccl"):
    return [str(device), str(other_device), backend]


def read(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dist-backend", type=str, default="nccl")
    args = parser.parse_args(words)
    return {"device": args.device, "dist_backend": args.dist_backend}


def constant(device=DEVICE):
    return [device, DEVICE, (lambda: DEVICE)()]
"""


@pytest.mark.process
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_default_is_resolved_at_use_and_the_import_asks_for_nothing(device):
    done = port(DEFAULTS.encode())
    assert port(done.after).after == done.after
    text = done.after.decode().replace("import torch\n", "", 1) + (
        "print(portable.__dict__.get('_device'), len(probes))\n"
        "print(run(), run('cpu', other_device=None, backend='x'))\n"
        "print(Trainer.device, Trainer().device, Options().device)\nt = Trainer()\nt.device = 'mine'\nprint(t.device)\n"
        "print(read([]), read(['--device', 'cuda:1']), read(['--device', 'auto']))\nprint(constant())\n"
    )
    if device == "sim":
        text = "import toprope.sim\ntoprope.sim.install(chip='910B3', count=2)\n" + text
    said = run_here(text, TOPROPE_DEVICE="npu" if device == "sim" else "cpu")
    one, second, backend = ("npu", "npu:1", "hccl") if device == "sim" else ("cpu", "cpu", "gloo")
    assert said == [
        "None 0",
        f"['{one}', '{second}', '{backend}'] ['cpu', 'None', 'x']",
        f"{second} {second} {one}",
        "mine",
        f"{{'device': '{one}', 'dist_backend': '{backend}'}} {{'device': '{second}', 'dist_backend': '{backend}'}} "
        f"{{'device': 'auto', 'dist_backend': '{backend}'}}",
        f"['{one}', '{one}', '{one}']",
    ]


def test_the_help_of_an_option_shows_the_default_of_before():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", type=lambda text: "npu")
    assert parser.parse_args([]).device == "npu"
    assert parser.get_default("device") == "cuda"


def test_a_first_statement_of_its_own_goes_in_front_of_decorators_and_behind_a_docstring():
    text = 'def f(device="cuda"):\n    """Doc."""\n    # c\n    @g\n    def h(): return device\n    return h\n'
    assert body(ported(text)) == text.replace("    # c", "    device = portable.resolve(device)\n    # c")
    text = "class A:\n\tdef f(self, dev='cuda'): # c\n\t\treturn dev\n"
    assert body(ported(text)) == text.replace("\t\treturn", "\t\tdev = portable.resolve(dev)\n\t\treturn")


# Stand-ins


def test_every_name_that_takes_the_place_of_another_has_a_signature():
    known = signatures()
    names = {name for _, name in table().drop_ins.values()} - {"OutOfMemoryError", "Event", "Stream"}
    assert names <= known.keys()
    assert {"flash_attn_func", "memory_efficient_attention", "resolve", "autocast", "GradScaler"} <= known.keys()


def test_what_takes_the_place_of_torchs_takes_its_arguments_or_is_not_put_there():
    lacks = set()
    for full, (_, name) in table().drop_ins.items():
        thing = torch
        for part in full.split(".")[1:]:
            thing = getattr(thing, part, None)
        mine = signatures().get(name)
        if thing is None or mine is None:
            continue
        try:
            asked = inspect.signature(thing)
        except (ValueError, TypeError):
            continue
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        for each in asked.parameters.values():
            if each.kind in kinds and each.name not in mine.names and not mine.any_name:
                lacks.add((full.removeprefix("torch.cuda."), each.name))
                call = ast.parse(f"f({each.name}=1)", mode="eval").body
                assert refused(name, call), full
    assert {name for name, _ in lacks} <= {"empty_cache", "memory.empty_cache", "range", "nvtx.range", "mark"}, lacks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("torch.cuda.synchronize(0, 1)\n", "takes 1 arguments, and 2 are given"),
        ("torch.cuda.empty_cache(mempool=p)\n", "has no argument mempool"),
        ("with torch.cuda.amp.autocast(kind=1):\n    pass\n", "has no argument kind"),
    ],
)
def test_a_call_that_the_stand_in_does_not_understand_is_left(text, said):
    done = ported(text)
    assert body(done) == text
    assert said in done.findings[0].held_back


@pytest.mark.parametrize("more", ["window_size=(128, 0)", "softcap=1.0", "alibi_slopes=s", "return_attn_probs=True"])
def test_flash_attention_with_what_torch_has_not_is_class_n(more):
    text = f"from flash_attn import flash_attn_func\ny = flash_attn_func(q, k, v, causal=True, {more})\n"
    done = ported(text)
    assert body(done) == text
    assert [each.kind for each in done.findings] == ["N"]
    assert f"takes {more.partition('=')[0]} as " in done.findings[0].message


@pytest.mark.parametrize(("more", "kind"), [("op=None, output_dtype=None", "R"), ("op=kernel", "N")])
def test_xformers_attention_is_converted_where_its_other_arguments_are_the_defaults(more, kind):
    done = ported(f"from xformers.ops import memory_efficient_attention as mea\ny = mea(q, k, v, None, 0.0, {more})\n")
    assert [(each.kind, each.converted) for each in done.findings] == [(kind, kind == "R")]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("q, k, v, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, return_attn_probs=False", "R"),
        ("q, k, v, 0.0, None, True, (-1, -1), 0.0, None, True", "R"),
        ("q, k, v, 0.0, None, True, window", "N"),
        ("q, k, v, softcap=self.softcap", "N"),
    ],
)
def test_flash_attention_is_converted_where_its_other_arguments_are_the_defaults(call, kind):
    done = ported(f"from flash_attn import flash_attn_func\ny = flash_attn_func({call})\n")
    assert [(each.kind, each.converted) for each in done.findings] == [(kind, kind == "R")]


# Mixed precision, reductions


@pytest.mark.process
def test_autocast_that_was_on_on_the_cpu_stays_on_there():
    text = (
        "x = torch.ones(2, 2)\n"
        'with torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16):\n'
        "    print((x @ x).dtype)\n"
        'print(torch.amp.GradScaler("cuda" if torch.cuda.is_available() else "cpu").is_enabled())\n'
    )  # fmt: skip
    done = port(f"import torch\n{text}".encode()).after.decode()
    assert "portable.kind()" in done
    assert run_here(done) == run_here(text) == ["torch.bfloat16", "True"]


@pytest.mark.process
def test_a_reduction_is_float32_on_npus_alone():
    text = "from toprope.device import portable\nprint(portable.reduced_dtype(torch.float64))\n"
    text += "print(portable.reduced_dtype(torch.int64))\n"
    sim = "import toprope.sim\ntoprope.sim.install(chip='910B3', count=1)\n"
    assert run_here(text) == ["torch.float64", "torch.int64"]
    assert run_here(sim + text, TOPROPE_DEVICE="npu") == ["torch.float32", "torch.int64"]


# Every mode


@pytest.mark.parametrize(
    "runtime",
    ["toprope.device.portable", "toprope_portable", "pack.toprope_portable", ".toprope_portable", "..toprope_portable"],
)
def test_what_a_rule_made_is_left_alone_in_every_mode(runtime):
    for rule in all_rules().values():
        for example in rule.examples:
            if rule.family not in ("files", "trace"):
                once = port(example.before.encode(), runtime=runtime).after
                assert port(once, runtime=runtime).after == once, rule.code
