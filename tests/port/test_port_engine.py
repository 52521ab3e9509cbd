"""The engine: names, spans, encodings, the import, edits that are held back, and files that are no Python.

Holds `port.engine` and `port.syntax`.
"""

import codecs
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope import port as door
from toprope.port.engine import port
from toprope.port.syntax.edits import Edit, OverlapError, render
from toprope.port.syntax.source import Source, UnreadableError

IMPORT = "from toprope.device import portable\n"


def ported(text, **options):
    return port(text.encode(), **options)


def after(text, **options):
    done = ported(text, **options)
    assert not done.skipped
    assert port(done.after, **options).after == done.after
    return done.after.decode()


def codes(text):
    return [finding.rule.code for finding in ported(text).findings]


# Names


@pytest.mark.parametrize(
    "text",
    [
        "def f(torch):\n    torch.cuda.synchronize()\n",
        "import torch\nfor torch in other:\n    torch.cuda.synchronize()\n",
        "import torch\ntorch = other()\ntorch.cuda.synchronize()\n",
        "import torch\nf = lambda torch: torch.cuda.synchronize()\n",
        "import torch\n[torch.cuda.synchronize() for torch in other]\n",
        "from other import torch\ntorch.cuda.synchronize()\n",
        "from . import torch\ntorch.cuda.synchronize()\n",
        "import cupy.cuda\ncupy.cuda.synchronize()\n",
        "try:\n    import torch\nexcept ImportError as torch:\n    torch.cuda.synchronize()\n",
        "match x:\n    case [torch]:\n        import torch\n        torch.cuda.synchronize()\n",
    ],
)
def test_a_name_with_another_meaning_is_left_alone(text):
    assert after(text) == text


def test_a_name_that_is_bound_many_times_by_itself_is_looked_up_once():
    """Each look asked all of its bindings again, to the eighth power: microsoft/LoRA was never done."""
    lines = ["    x = x.part", "    y = x", "    x = y", "    amp = amp.part", "    cuda = cuda.amp"]
    text = "import torch\nfrom torch import cuda\ndef f(x):\n" + "\n".join(lines * 60)
    assert "portable" in after(text + "\n    x.y.z()\n    torch.cuda.synchronize()\n")


def test_a_chain_of_names_that_is_too_long_skips_the_file_and_not_the_run():
    """It ended the command with a RecursionError."""
    chain = "\n".join(f"    flag{at + 1} = not flag{at}" for at in range(600))
    text = (
        f"import torch\ndef f(x):\n    flag0 = torch.cuda.is_available()\n{chain}\n    if flag600:\n        x.cuda()\n"
    )
    done = ported(text)
    assert done.skipped
    assert done.after == text.encode()


@pytest.mark.parametrize(
    ("begin", "name"),
    [
        ("import torch", "torch.cuda"),
        ("import torch as t", "t.cuda"),
        ("import torch\nT = torch.cuda", "T"),
        ("import torch\nT = torch", "T.cuda"),
        ("import torch\na, b = 1, 2\nT: object = torch.cuda", "T"),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", "torch.cuda"),
        ("import torch, os", "getattr(torch, 'cuda')"),
        ("def f():\n    global torch\n    import torch", "torch.cuda"),
        ("if True:\n    import torch.nn", "torch.cuda"),
    ],
)
def test_a_name_is_known_under_what_the_file_calls_it(begin, name):
    done = ported(f"{begin}\n{name}.synchronize()\n")
    assert done.after.decode().endswith("portable.synchronize()\n")
    assert "TR026" in [finding.rule.code for finding in done.findings]


def test_scopes():
    text = (
        "import torch\n\n\nclass A:\n    torch = 1\n\n    def f(self):\n        torch.cuda.synchronize()\n\n\n"
        "def g():\n    def h():\n        nonlocal torch\n        torch.cuda.synchronize()\n\n    torch = other\n"
    )
    done = after(text)
    assert "    def f(self):\n        portable.synchronize()" in done
    assert "        nonlocal torch\n        torch.cuda.synchronize()" in done


def test_a_class_with_a_method_cuda_of_its_own_is_left_alone():
    text = (
        "class Graph:\n    def cuda(self):\n        return self\n\n\n"
        "g = Graph()\ng.cuda()\nGraph().cuda()\nx.cuda()\nm = Other.from_it().cuda()\n"
    )
    assert after(text) == text


def test_a_name_of_the_program_is_not_taken():
    done = after("import torch\nportable = 1\ntorch.cuda.synchronize()\n")
    assert "from toprope.device import portable as portable_device\n" in done
    assert "portable_device.synchronize()" in done


# The import


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ('"""Doc."""\nx.cuda()\n', '"""Doc."""\n{}x.to(portable.device())\n'),
        ("#!/usr/bin/env python\n# c\n\nx.cuda()\n", "#!/usr/bin/env python\n# c\n\n{}x.to(portable.device())\n"),
        (
            '"""Doc."""\nfrom __future__ import annotations\nx.cuda()\n',
            '"""Doc."""\nfrom __future__ import annotations\n{}x.to(portable.device())\n',
        ),
        (
            "import os\nos.environ['A'] = '1'\nimport torch\nimport sys  # c\n\nx.cuda()\n",
            "import os\nos.environ['A'] = '1'\nimport torch\nimport sys  # c\n{}\nx.to(portable.device())\n",
        ),
        ("import torch; x.cuda()\n", "{}import torch; x.to(portable.device())\n"),
        ("'doc'; import torch\nx.cuda()\n", "'doc'; import torch\n{}x.to(portable.device())\n"),
        ("if a:\n    import torch\nx.cuda()\n", "{}if a:\n    import torch\nx.to(portable.device())\n"),
        ("'doc'; x.cuda()\n", "'doc'; from toprope.device import portable; x.to(portable.device())\n"),
        (
            "@f(torch.cuda.is_available())\ndef g(): pass\nimport torch\n",
            "{}@f(portable.is_available())\ndef g(): pass\nimport torch\n",
        ),
        ("import torch\nx.cuda()", "import torch\n{}x.to(portable.device())"),
        (IMPORT.replace("le\n", "le as p\nx.cuda()\n"), IMPORT.replace("le\n", "le as p\nx.to(p.device())\n")),
    ],
)  # fmt: skip
def test_where_the_import_goes(before, wanted):
    assert after(before) == wanted.format(IMPORT)


def test_another_runtime_module():
    assert after("import torch\nx.cuda()\n", runtime="toprope_portable").startswith(
        "import torch\nimport toprope_portable as portable\n"
    )
    assert after("from torch.cuda.amp import autocast\n", runtime="a.b.portable") == (
        "from a.b.portable import autocast\n"
    )


# Bytes


@pytest.mark.parametrize(
    ("encoding", "newline"),
    # Python itself finds no encoding in a file whose lines end with CR alone
    [(name, end) for name in ("utf-8", "latin-1", "gbk", "utf-8-sig", "shift_jis") for end in ("\n", "\r\n")]
    + [("utf-8", "\r")],
)
def test_only_the_places_change(encoding, newline):
    sign = "é" if encoding == "latin-1" else "日"
    name = "latin-1" if encoding == "latin-1" else encoding.removesuffix("-sig")
    lines = [
        f"# coding: {name}", "import torch", f"s = '{sign}{sign}'; x.cuda(); t = '{sign}'", f"if s:\t# {sign}",
        f"\tx.to('cuda'  ,  dtype=half) ;y='{sign}'   ", f'"""{sign}', "  cuda", '"""', "z = 1  \x0c",
    ]  # fmt: skip
    before = newline.join(lines).encode(encoding)
    lines[2] = f"s = '{sign}{sign}'; x.to(portable.device()); t = '{sign}'"
    lines[4] = f"\tx.to(portable.device()  ,  dtype=half) ;y='{sign}'   "
    lines.insert(2, IMPORT.rstrip())
    done = port(before)
    assert done.skipped == ""
    assert done.after == newline.join(lines).encode(encoding)
    assert port(done.after).after == done.after


@given(
    st.lists(
        st.sampled_from(
            ["x.cuda()", "y = f(x.cuda(i),  'é')", "pass", "z = '''\n é\tcuda\n'''", "# ünï cuda", "a = 1 ;  b  = 2",
             "torch.cuda.synchronize()  # é", "s = f'{x} é {torch.cuda.device_count()}'", "if a:\n\tx.cuda(  1 )"]
        ),
        max_size=12,
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "latin-1", "utf-8-sig"]),
)  # fmt: skip
def test_lines_without_a_place_are_the_same_bytes(statements, newline, encoding):
    text = "\n".join([f"# -*- coding: {encoding.removesuffix('-sig')} -*-", "import torch", *statements, ""])
    before = text.replace("\n", newline).encode(encoding)
    done = port(before)
    assert done.skipped == ""
    assert port(before).after == done.after
    assert port(done.after).after == done.after
    old, new = before.split(b"\n"), done.after.split(b"\n")
    if done.changed and len(new) > len(old):
        (line,) = (line for line in new if line.startswith(b"from toprope"))
        new.remove(line)
    places = {line for finding in done.findings for line in range(finding.line, finding.end_line + 1)}
    assert len(old) == len(new)
    assert all(a == b for number, (a, b) in enumerate(zip(old, new, strict=True), 1) if number not in places)


def test_columns_are_characters_counted_from_one():
    (finding,) = ported("s = '日本'; x.cuda()\n").findings
    assert (finding.line, finding.column, finding.end_column) == (1, 11, 19)
    assert (finding.before, finding.after) == ("x.cuda()", "x.to(portable.device())")


# Edits


def test_inner_edits_are_made_inside_what_stays():
    text = "f(a, g(b))"
    outer = Edit(0, 10, ("F[", (5, 9), "]"))
    assert render(text, [outer, Edit(7, 8, ("B",)), Edit(2, 3, ("A",))]) == "F[g(B)]"
    assert render(text, [Edit(2, 2, ("x, ",)), Edit(2, 3, ("A",))]) == "f(x, A, g(b))"
    with pytest.raises(OverlapError):
        render(text, [Edit(0, 4, ("x",)), Edit(2, 6, ("y",))])


def test_nested_calls():
    text = "y = x.cuda(torch.cuda.current_device()).to(f'cuda:{torch.cuda.device_count() - 1}')\n"
    assert after(f"import torch\n{text}") == (
        f"import torch\n{IMPORT}"
        "y = x.to(portable.device(portable.current_device())).to(portable.device(portable.device_count() - 1))\n"
    )  # fmt: skip


def test_a_comment_is_never_lost():
    text = "import torch\nd = torch.device(  # which\n    'cuda'\n)\n"
    (finding,) = ported(text).findings
    assert after(text) == text
    assert (finding.converted, finding.held_back) == (False, "a comment is in the middle of it")
    assert finding.kind is door.Kind.REVIEW


def test_inside_f_strings():
    assert after('import torch\nprint(f"{torch.cuda.device_count()} é {torch.cuda.current_device()!r:>{w}}")\n') == (
        f'import torch\n{IMPORT}print(f"{{portable.device_count()}} é {{portable.current_device()!r:>{{w}}}}")\n'
    )
    text = 'import torch\nprint(f"""\n{torch.cuda.device_count()} and\n {x} {torch.cuda.device_count()}""" "b")\n'
    done = ported(text)
    for finding in done.findings:  # changed where its place is certain, else reported
        assert finding.converted or finding.held_back
    compile(done.after, "x", "exec")


def test_comments_that_leave_a_line():
    text = (
        "import torch\ntorch.cuda.synchronize()  # toprope: ignore[TR026]\n"
        "torch.cuda.synchronize()  # toprope: ignore\n"
        "torch.cuda.synchronize()  # portable: ignore\ntorch.cuda.synchronize()  # toprope: ignore[TR999]\n"
        "s = '# toprope: ignore'; torch.cuda.synchronize()\n"
    )
    done = ported(text)
    assert [finding.line for finding in done.findings] == [5, 6]
    assert done.ignored == 3


# Files that are none


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"print 'cuda'\n", "it is Python 2 (line 1: Missing parentheses in call to 'print'"),
        (b"try:\n    cuda()\nexcept A, e:\n    pass\n", "it is Python 2 (line 3: "),
        (b"cuda(\n", "line 1: '(' was never closed"),
        (b"cuda = '\0'\n", "null bytes"),
        (b"# coding: gbk\ncuda = '\xff\xff'\n", "byte 22 is not gbk"),
        (b"# coding: nothing\ncuda\n", "its encoding cannot be read: unknown encoding: nothing"),
        (b"cuda = '\xe9'\n", "its encoding cannot be read: invalid or missing encoding declaration"),
        (b"cuda" + b"(" * 5000 + b")" * 5000, "nest"),
        (b"cuda = " + b"-" * 90000 + b"1\n", "nested too deeply"),
        (b"# cuda\n" * 800_000, "it has 5.6 MB: taken for a generated file"),
    ],
)
def test_what_cannot_be_read_is_skipped_with_the_reason(data, reason):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = port(data)
    assert reason in done.skipped
    assert (done.after, done.findings) == (data, [])


def test_deep_but_possible_nesting():
    done = ported("import torch\nx = " + "(" * 60 + "torch.cuda.device_count()" + ")" * 60 + "\n")
    assert b"portable.device_count()" in done.after


def test_escapes_that_python_warns_about_are_no_error():
    assert after("s = '\\d'\nx.cuda()\n") == f"{IMPORT}s = '\\d'\nx.to(portable.device())\n"


def test_a_file_without_the_words_is_not_parsed():
    assert ported("this is ( no Python").skipped == ""


def test_a_file_that_would_not_come_back_the_same_is_not_touched():
    with pytest.raises(UnreadableError, match="only way"):
        Source(b"# coding: iso2022_jp\n" + b"x = '\x1b$B\x1b(B'\n")
    assert Source(codecs.BOM_UTF8 + b"x = 1\n").encode("x = 2\n") == codecs.BOM_UTF8 + b"x = 2\n"


def test_exactly_that_row_of_look_alikes():
    text = (
        "from enum import Enum\n\n\nclass Backend(Enum):\n    CUDA = 'gpu'\n\n\n"
        "x.to(next(it))\nBackend.CUDA\n"
        "print('cuda:0 is fast', 'SELECT cuda FROM t', 'https://e.org/cu118', 'x_cuda.cu')\n"
        "versions = {'cuda': 11.8}\nuse_cuda = args.cuda\nself.cuda_graphs = {}\n"
    )
    assert after(text) == text
    assert codes(text) == ["TR101"]
