"""The port of notebooks: cells as one program, commands of IPython, and JSON that stays as it was.

Holds `port.notebook` and `port.syntax.notebook_json`.
"""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.port import all_rules
from toprope.port.notebook import port_notebook

CELLS = [
    ("markdown", "# x.cuda()"),
    ("code", "!pip install flash-attn\n%matplotlib inline\nimport torch\nfrom torch import cuda as c"),
    ("code", "%%time\n# été\nx = x.cuda()  # toprope: ignore\nc.synchronize()\nfiles = !nvidia-smi \\\n  -L\nx?\n"),
    ("code", "%%bash\nCUDA_VISIBLE_DEVICES=0 python a.py"),
    ("code", "%%html\n<b>cuda</b>"),
    ("code", "print 'cuda'"),
    (
        "code",
        'y = (a\n  % b)\ns = """\n!ls cuda\n"""\n%env CUDA_VISIBLE_DEVICES=0\nif y:\n    !python b.py\n    y.cuda()',
    ),
    ("code", ""),
]


def notebook(cells=CELLS, *, as_lines=True, **about):
    rows = []
    for kind, text in cells:
        source = text.splitlines(keepends=True) if as_lines else text
        rows.append({"cell_type": kind, "metadata": {}, "source": source, "outputs": [{"text": ["x.cuda()"]}]})
    return {"cells": rows, "metadata": about, "nbformat": 4}


def written(content, **options):
    return (json.dumps(content, **options) + "\n").encode()


def ported(content, **options):
    data = content if isinstance(content, bytes) else written(content, indent=1, ensure_ascii=False)
    done = port_notebook(data, "n.ipynb", **options)
    assert done.skipped == ""
    assert port_notebook(done.after, "n.ipynb", **options).after == done.after
    return done


def sources(data):
    return ["".join(cell["source"]) for cell in json.loads(data)["cells"]]


def test_cells_are_one_program():
    done = ported(notebook())
    after = sources(done.after)
    assert after[1] == CELLS[1][1].replace("from torch import cuda as c", "from toprope.device import portable")
    assert after[2] == CELLS[2][1].replace("c.sync", "portable.sync")
    assert after[3] == "%%bash\nCUDA_VISIBLE_DEVICES=0 ASCEND_RT_VISIBLE_DEVICES=0 python a.py"
    assert after[6] == CELLS[6][1].replace("y.cuda()", "y.to(portable.device())")
    assert [after[at] for at in (0, 4, 5, 7)] == [CELLS[at][1] for at in (0, 4, 5, 7)]
    places = {(each.cell, each.line, each.rule.code) for each in done.findings}
    assert places >= {
        (2, 1, "TR106"), (3, 4, "TR026"), (3, 5, "TR108a"), (4, 2, "TR108"), (5, 2, "TR109"), (6, 1, "TR109"),
        (7, 6, "TR109"), (7, 9, "TR007"),
    }  # fmt: skip
    assert not {line for cell, line, _ in places if cell == 3} & {3}
    assert done.ignored == 1
    texts = {(each.cell, each.line): each.before for each in done.findings}
    assert texts[3, 4] == "c.synchronize"
    assert texts[7, 9] == "y.cuda()"


def test_an_import_stays_that_a_command_uses():
    cells = ["from torch import cuda as c", "%time c.synchronize()", "c.synchronize()"]
    assert sources(ported(notebook([("code", cell) for cell in cells])).after) == [
        "from torch import cuda as c\nfrom toprope.device import portable", cells[1], "portable.synchronize()",
    ]  # fmt: skip


@pytest.mark.parametrize("as_lines", [True, False])
@pytest.mark.parametrize(
    "options", [{"indent": 1}, {"indent": 4, "ensure_ascii": False}, {}, {"separators": (",", ":")}]
)
def test_only_changed_lines_change(as_lines, options):
    code = "import torch\ns = 'é \\\\n \U0001f600'\nx.cuda()\ny = '\\n'"
    data = written(notebook([("code", code)], as_lines=as_lines), **options)
    done = ported(data)
    wanted = code.replace("x.cuda()", "x.to(portable.device())").replace(
        "torch\n", "torch\nfrom toprope.device import portable\n"
    )
    content = notebook([("code", wanted)], as_lines=as_lines)
    assert done.after == written(content, **options)


def test_escapes_of_lines_that_stay_are_kept():
    data = rb'{"cells": [{"source": ["import torch\n", "s = \"\u00e9\/\"\n", "x.cuda()"], "cell_type": "code"}]}  '
    assert ported(data).after == (
        rb'{"cells": [{"source": ["import torch\n", "from toprope.device import portable\n", "s = \"\u00e9\/\"\n", '
        rb'"x.to(portable.device())"], "cell_type": "code"}]}  '
    )


def test_the_third_form_and_other_languages():
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x.cuda()"]}]}], "nbformat": 3}
    assert b"x.to(portable.device())" in ported(old).after
    assert not ported(notebook(kernelspec={"language": "julia"})).findings


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"cuda {", "it cannot be read as a notebook: Expecting value"),
        (b'["cuda"]', "it cannot be read as a notebook: it has no cells"),
        (b'{"cells": 3, "cuda": 1}', "it cannot be read as a notebook: it has no cells"),
        (b'"cuda \xff"', "byte 6 is not utf-8"),
        (b'{"cuda":' + b"[" * 99999, "it is nested too deeply"),
        (b'{"cells": [{"cell_type": "code", "source": "a", "source": "cuda"}]}', "one of its keys is there twice"),
    ],
)
def test_what_is_no_notebook_is_skipped_with_the_reason(data, reason):
    done = port_notebook(data)
    assert reason in done.skipped
    assert (done.after, done.findings) == (data, [])


@pytest.mark.parametrize("example", all_rules()["TR109"].examples)
def test_examples_of_the_rule(example):
    done = ported(notebook([("code", example.before.rstrip("\n"))]))
    assert [each.rule.code for each in done.findings] == ["TR109"] * example.reported


LINES = st.sampled_from(
    ["import torch", "x.cuda()", "!nvidia-smi", "%time x.cuda()", "x = '''", "'''", "(", ")", "if x:", "    x.cuda()",
     "    !ls", "%%time", "%%bash", "CUDA_VISIBLE_DEVICES=1 a", "# coding: gbk", "x?", "\\", "\r", "é\U0001f600", "",
     "\x0c"]
)  # fmt: skip


def test_a_cell_that_ends_in_a_carriage_return_moves_no_other():
    """The places of the cells behind it were one line off."""
    done = ported(notebook([("code", "\r"), ("code", "x.cuda()")]))
    assert [(each.cell, each.line, each.before) for each in done.findings] == [(2, 1, "x.cuda()")]


@pytest.mark.slow
@given(st.lists(st.lists(LINES, max_size=6).map("\n".join), max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_any_cells(cells, as_lines, indent):
    content = notebook([("code", cell) for cell in cells], as_lines=as_lines)
    done = ported(written(content, indent=indent, ensure_ascii=bool(indent)))
    before, after = content, json.loads(done.after)
    for old, new in zip(before["cells"], after["cells"], strict=True):
        assert {**old, "source": 0} == {**new, "source": 0}
        assert len("".join(new["source"]).split("\n")) - len("".join(old["source"]).split("\n")) in (0, 1)
    for each in done.findings:
        line = re.split(r"\r\n|\r|\n", cells[each.cell - 1])[each.line - 1]
        assert each.before.split("\n")[0] in line
