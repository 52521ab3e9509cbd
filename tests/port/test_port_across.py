"""Conditions whose answer is used in another file, or where the port cannot read it.

Holds `port.conditions.across`.
"""

import json

import pytest

from toprope.port.engine import port
from toprope.port.notebook import port_notebook
from toprope.port.scan import find, port_files

ASK = "import torch\n\nuse_cuda = torch.cuda.is_available()\n"


def ported(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return {each.path.rpartition("/")[2][:-3]: each for each in port_files(find([folder]))}


def notebook(*cells):
    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": each} for each in cells]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


# Other files

FAILS = "    torch.cuda.cudart()\n"
USES = {
    "from config import use_cuda\nimport torch\nif use_cuda:\n" + FAILS: ASK,
    "from config import use_cuda as uc\nimport torch\nif uc and x:\n" + FAILS: ASK,
    "from config import *\nimport torch\nif use_cuda:\n" + FAILS: ASK,
    "import config\nimport torch\nif config.use_cuda:\n" + FAILS: ASK,
    "from .config import has\nimport torch\nif has():\n" + FAILS:
        "import torch\ndef has():\n    return torch.cuda.is_available()\n",
    "import config, torch\nif config.has():\n" + FAILS:
        "import torch\ndef has():\n    if torch.cuda.is_available():\n        return True\n    return False\n",
    "import torch\ndef run(args):\n    backend = 'nccl' if args.gpu else 'gloo'\n    if args.gpu:\n    " + FAILS:
        "import torch\nargs.gpu = torch.cuda.is_available() and not args.no_gpu\n",
    "import torch\ndef run(o):\n    if o.use_gpu:\n    " + FAILS:
        "import torch\nparser.add_argument('--use-gpu', default=torch.cuda.is_available())\n",
    "import torch\nfrom config import count\nif count > 1:\n    m = torch.nn.DataParallel(m)\n":
        "import torch\ncount = torch.cuda.device_count()\n",
}  # fmt: skip


@pytest.mark.parametrize(("use", "ask"), USES.items())
def test_a_question_stays_where_another_file_guards_what_stays_cudas(tmp_path, use, ask):
    done = ported(tmp_path, config=ask, use=use)
    assert done["config"].after.decode() == ask
    (held,) = [each for each in done["config"].findings if each.held_back]
    assert "is used in use.py, where it guards" in held.held_back


def test_a_question_is_converted_where_other_files_guard_what_is_ported(tmp_path):
    use = "from config import use_cuda\nimport torch\nif use_cuda:\n    x.cuda()\n"
    done = ported(tmp_path, config=ASK, use=use, other="import torch\nif z.use_cuda():\n" + FAILS)
    assert b"portable.is_available()" in done["config"].after
    assert b"x.to(portable.device())" in done["use"].after


def test_an_attribute_that_a_file_sets_itself_is_no_answer_of_another_one(tmp_path):
    one = "import torch\nargs.cuda = torch.cuda.is_available()\n"
    done = ported(tmp_path, one=one, two=one + "if args.cuda:\n" + FAILS)
    assert b"portable" in done["one"].after
    assert b"portable" not in done["two"].after


def test_a_question_stays_where_a_file_that_cannot_be_read_uses_it(tmp_path):
    done = ported(tmp_path, config=ASK, old="from config import use_cuda\nif use_cuda:\n    print 'python 2'\n")
    assert done["old"].skipped
    assert done["config"].after.decode() == ASK
    assert any("old.py, which cannot be read" in each.held_back for each in done["config"].findings)
    (tmp_path / "old.py").write_text("print 'python 2'\n")
    assert b"portable" in ported(tmp_path, config=ASK)["config"].after


# Cells


UNREAD = [
    "if use_cuda:\n    model = to_cuda(model\n",
    "%time train(model, use_cuda)",
    "%%time\nrun(use_cuda)\n)",
    "!python train.py {'--cuda' if use_cuda else ''}",
    "%%cython\nif use_cuda: pass",
]


@pytest.mark.parametrize("cell", UNREAD)
def test_a_question_stays_where_a_cell_that_is_not_read_uses_it(cell):
    done = port_notebook(notebook(ASK, cell, "if use_cuda:\n    x.cuda()\n"))
    assert not done.changed
    asked = next(each for each in done.findings if each.rule.code == "TR001")
    assert asked.held_back.startswith("the condition is used in ")


@pytest.mark.parametrize(
    "cell", ["!nvidia-smi --use_cuda", "%matplotlib inline", "%%bash\necho use_cuda", "f(", "%%html\nuse_cuda"]
)
def test_a_cell_that_is_not_read_and_does_not_use_it_changes_nothing(cell):
    assert b"portable.is_available()" in port_notebook(notebook(ASK, cell)).after


# Ways of an answer in one file


FLOWS = [
    "def has():\n    if torch.cuda.is_available():\n        return True\n    return False\nif has():\n" + FAILS,
    "def lacks():\n    if not torch.cuda.is_available():\n        return True\n    return False\nif not lacks():\n"
    + FAILS,
    "on = False\nif torch.cuda.is_available():\n    on = True\nif on:\n" + FAILS,
    "a, *b, on, c = 1, *z, torch.cuda.is_available(), 2\nif on:\n" + FAILS,
    "both = torch.cuda.is_available(), 2\nif both[0]:\n" + FAILS,
]


@pytest.mark.parametrize("text", FLOWS)
def test_an_answer_is_followed_through_constants_and_tuples(text):
    text = f"import torch\n{text}"
    assert port(text.encode()).after.decode() == text


def test_what_is_opened_by_a_negative_comparison_is_what_runs_on_cuda():
    text = "import torch\ndef f(device):\n    if device.type != 'cuda':\n        return 1\n    torch.cuda.cudart()\n"
    assert port(text.encode()).after.decode() == text
    text = "import torch\ndef f(device):\n    if device.type != 'cuda':\n        torch.cuda.cudart()\n"
    assert b"portable" in port(text.encode()).after
