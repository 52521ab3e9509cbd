"""Names of torch and packages for CUDA that a file has by another way than its own `import torch`.

Holds `port.syntax.scopes` and `port.rules.names`.
"""

import pytest

from toprope import port
from toprope.port.rules import extensions, kernels
from toprope.port.scan import find, port_files


def codes(text):
    return [each.rule.code for each in port.port(text.encode()).findings]


PACKAGES = sorted(
    {name for package in kernels._PACKAGES for name in package[3]} | extensions._KNOWN_BINARY | extensions._PLUGINS
    | {"flash_attn", "flash_attn_3", "xformers", "pynvml", "py3nvml", "nvsmi", "GPUtil", "fastcudnn", "my_cuda",
       "cuda_ops"}
)  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_for_cuda_is_reported_in_a_file_that_says_nothing_else_of_it(name):
    """`import tinycudann` was silent: it stood in no table. `import kaolin` was, without another word of CUDA."""
    assert codes(f"import {name}\n")
    assert codes(f"from {name} import something\n")


@pytest.mark.parametrize("text", ["import scudo", "import mycuda.tools as t", "from utils.cuda_tools import timer"])
def test_a_package_of_the_project_is_not_one_for_cuda(text, tmp_path):
    (tmp_path / "mycuda").mkdir()
    (tmp_path / "mycuda" / "tools.py").write_text("")
    (tmp_path / "a.py").write_text(f"{text}\n")
    assert [each.findings for each in port_files(find([tmp_path])) if each.findings] == []


STARS = {
    "from torch import *\nx = ones(2, device='cuda')\nwhere = device('cuda')\n": ["TR010", "TR002"],
    "from torch import *\nif cuda.is_available():\n    x = ones(1).cuda()\n": ["TR001", "TR006"],
    "from torch.cuda import *\nsynchronize()\nready = is_available()\n": ["TR102a", "TR026", "TR001"],
    "from torch.cuda.amp import *\nscaler = GradScaler()\n": ["TR102a", "TR055"],
    "from torch.nn import *\nmodel = DataParallel(model)\n": ["TR069"],
    "from os.path import *\nimport torch\ntorch.cuda.synchronize()\n": ["TR026"],
}


@pytest.mark.parametrize("text", STARS)
def test_names_of_torch_through_a_star_are_torchs(text):
    assert codes(text) == STARS[text]
    ported = port.port(text.encode())
    assert port.port(ported.after).after == ported.after


PROJECT = {
    "common/__init__.py": "from .base import *\n",
    "common/base.py": "import torch as th\nimport torch\nfrom torch import cuda, nn\n"
                      "from torch.cuda import synchronize\n",
    "listed.py": "import torch\n__all__ = ['nothing']\nnothing = 1\n",
    "star.py": "from common import *\nth.cuda.empty_cache()\ntorch.cuda.empty_cache()\nsynchronize()\n",
    "named.py": "from common.base import torch as t, cuda\nt.cuda.empty_cache()\ncuda.empty_cache()\n",
    "module.py": "import common.base\ncommon.base.torch.cuda.empty_cache()\n",
    "not_exported.py": "from listed import *\nx = torch.cuda.something\n",
    "others.py": "from numpy import *\nx = synchronize()\n",
}  # fmt: skip


def test_names_of_torch_through_the_projects_own_files_are_torchs(tmp_path):
    """`from utils import *`, where utils imports torch: nothing was rewritten, and nothing said."""
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {each.path.removeprefix(f"{tmp_path}/"): each for each in port_files(find([tmp_path]))}
    assert found["star.py"].after.decode() == (
        "from toprope.device import portable\nfrom common import *\nportable.empty_cache()\nportable.empty_cache()\n"
        "portable.synchronize()\n"
    )
    assert found["named.py"].after.count(b"portable.empty_cache()") == 2
    assert found["module.py"].after.count(b"portable.empty_cache()") == 1
    assert found["not_exported.py"].findings == found["others.py"].findings == []


OPTIONS = {
    "main.py": "import argparse\nfrom run import run\nparser = argparse.ArgumentParser()\n"
               "parser.add_argument('--device', default='cuda')\n"
               "parser.add_argument('--dist-backend', default='nccl')\n"
               "parser.add_argument('--where', default='here')\nrun(parser.parse_args())\n",
    "run.py": "import torch\ndef run(args, other):\n    x = torch.ones(2, device=args.device)\n"
              "    torch.distributed.init_process_group(args.dist_backend)\n"
              "    return x, args.where, other.dist_backend\n",
}  # fmt: skip


def test_an_option_is_resolved_in_the_file_that_reads_it(tmp_path):
    """`type=portable.resolve` asked for the device while the command line was parsed."""
    for name, text in OPTIONS.items():
        (tmp_path / name).write_text(text)
    found = {each.path.removeprefix(f"{tmp_path}/"): each for each in port_files(find([tmp_path]))}
    assert not found["main.py"].changed
    text = found["run.py"].after.decode()
    assert "device=portable.resolve(args.device)" in text
    assert "init_process_group(portable.resolve(args.dist_backend))" in text
    assert "return x, args.where, other.dist_backend" in text
    (tmp_path / "run.py").write_text(text)
    assert [each.findings for each in port_files(find([tmp_path])) if each.findings] == []


READS = {
    "with torch.autocast(args.device): pass": "with torch.autocast(portable.kind(args.device)): pass",
    "x = torch.ones(1).to(args.device)": "x = torch.ones(1).to(portable.resolve(args.device))",
    "x = torch.ones(1).cuda(args.device)": "x = torch.ones(1).to(portable.device(portable.resolve(args.device)))",
    "if 'cuda' in args.device: pass": "if portable.is_accelerator(portable.resolve(args.device)): pass",
    "if str(args.device).startswith('cuda'): pass": "if portable.is_accelerator(portable.resolve(args.device)): pass",
    "device = torch.device(args.device if torch.cuda.is_available() else 'cpu')":
        "device = torch.device(portable.resolve(args.device) if portable.is_available() else 'cpu')",
    "other.device = args.name": "other.device = args.name",
}  # fmt: skip


@pytest.mark.parametrize("line", READS)
def test_an_option_is_resolved_inside_what_other_rules_rewrite(line):
    """The question was rewritten, and the option in it left: a second run changed it."""
    text = (
        "import argparse\nimport torch\nparser = argparse.ArgumentParser()\n"
        f"parser.add_argument('--device', default='cuda')\nargs = parser.parse_args()\n{line}\n"
    )
    ported = port.port(text.encode())
    assert READS[line] in ported.after.decode().splitlines()
    assert port.port(ported.after).after == ported.after


def test_all_options_at_once_are_reported_where_the_file_has_such_an_option(tmp_path):
    parser = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--{0}', default='{1}')\n"
    (tmp_path / "a.py").write_text(parser.format("device", "cuda") + "run(**vars(parser.parse_args()))\n")
    (tmp_path / "b.py").write_text(parser.format("name", "x") + "args = parser.parse_args()\nprint(vars(args))\n")
    (tmp_path / "c.py").write_text("def show(args):\n    return args.device, vars(args)\n")
    found = {each.path[-4:]: [one.before for one in each.findings] for each in port_files(find([tmp_path]))}
    assert found == {"a.py": ["vars(parser.parse_args())"], "b.py": [], "c.py": ["args.device", "vars(args)"]}


def test_a_number_that_is_handed_on_as_a_device_is_said_once_a_file():
    text = "import torch\ndef build(local_rank, rank):\n" + "    make(device={})\n" * 3
    text = text.format("local_rank", "local_rank", "rank")
    assert [(each.rule.code, each.line) for each in port.port(text.encode()).findings] == [("TR021b", 3), ("TR021b", 5)]


NAMED = """import torch.distributed as dist
{before}
dist.init_process_group(backend={backend})
"""


@pytest.mark.parametrize(
    ("before", "backend", "wrapped"),
    [
        ("config = json.load(file)", "config['backend']", True),
        ("", "h.dist_config.dist_backend", True),
        ("", "settings.get('backend')", True),
        ("def read(): ...", "read()", True),
        ("name = config['backend']", "name", True),
        ("name = 'gloo'", "name", False),
        ("name = 'gloo' if slow else 'mpi'", "name", False),
        ("", "'gloo'", False),
        ("", "None", False),
        ("", "dist.get_default_backend_for_device(x)", False),
    ],
)
def test_a_backend_that_is_not_in_the_file_is_resolved(before, backend, wrapped):
    """hifi-gan reads "nccl" from a JSON file."""
    text = NAMED.format(before=before, backend=backend)
    ported = port.port(text.encode())
    assert (f"backend=portable.resolve({backend})" in ported.after.decode()) == wrapped
    assert port.port(ported.after).after == ported.after
