"""Names of devices that get to a question about their text: rewritten together, or left together."""

from __future__ import annotations

from textwrap import dedent

import pytest

from toprope.port.engine import port
from toprope.port.scan import find, port_files

LEFT = "its text is asked for"


def ported(text: str) -> str:
    return port(dedent(text).encode(), "a.py").after.decode()


def files(folder, **texts: str) -> dict[str, str]:
    """The port of several files of a program; the port of its own output changes nothing."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(dedent(text))
    after = {}
    for each in port_files(find([folder])):
        after[each.path.rpartition("/")[2].removesuffix(".py")] = each.after.decode()
    for name, text in after.items():
        (folder / f"{name}.py").write_text(text)
    assert [each.path for each in port_files(find([folder])) if each.changed] == []
    return after


# A comparison that is rewritten


@pytest.mark.parametrize("code", [
    "dev = device\n    return x.half() if dev == 'cuda' else x.to('cpu')",
    "kind = device.split(':')[0]\n    return x.half() if kind == 'cuda' else x.to('cpu')",
    "kind, _, index = device.partition(':')\n    return x.half() if kind == 'cuda' else x.to('cpu')",
    "if device.split(':')[0] == 'cuda':\n        return x.half()\n    raise ValueError(device)",
    "if 'cuda' != str(device):\n        raise ValueError(device)\n    return x.to(device)",
    "assert device in ('cuda', 'cpu')\n    return x.to(device)",
])  # fmt: skip
def test_a_comparison_stayed_and_the_text_that_gets_there_was_another(code):
    after = ported(f"def run(x, device='cuda'):\n    {code}\n")
    assert "portable.is_named(" in after
    assert "portable.resolve(device)" in after


def test_a_default_in_a_comparison_by_in_was_resolved_by_the_second_run_alone(tmp_path):
    """OpenVoice: a first statement came when the port looked at its own output."""
    text = """
        import torch
        class Base:
            def __init__(self, config, device="cuda:0"):
                if "cuda" in device:
                    assert torch.cuda.is_available()
                self.model = load(config).to(device)
    """
    after = files(tmp_path, api=text)["api"]
    assert "device = portable.resolve(device)" in after
    assert "if portable.is_accelerator(device):" in after


def test_a_comparison_in_a_method_and_in_another_file_is_rewritten_with_the_choice(tmp_path):
    after = files(
        tmp_path,
        model="""
            class Model:
                def __init__(self, device="cuda"):
                    self.device = device

                def run(self, x):
                    if self.device == "cuda":
                        return x.half()
                    raise ValueError(self.device)
        """,
        tool="""
            import torch
            from model import Model

            device = "cuda" if torch.cuda.is_available() else "cpu"
            Model(device).run(torch.ones(2))
        """,
    )
    assert 'if portable.is_named(self.device, "cuda"):' in after["model"]
    assert "device = portable.name()" in after["tool"]


# A question that stays


STAYS = [
    "assert device in DTYPES\n    return x.to(device)",
    "dev = device\n    return x.to(device, DTYPES[dev])",
    "table = DTYPES\n    return x.to(device, table.get(device, None) or table[str(device)])",
    "return globals()[f'run_{device}'](x.to(device))",
    "return getattr(x.to(device), device)()",
    "if re.match(r'cuda(:\\d+)?$', device):\n        return x.half()\n    return x.to(device)",
    "d = device if y else 'cpu'\n    if d == 'cuda':\n        return x.cuda()\n    if d == 'xpu':\n"
    "        return x.xpu()\n    return x.to(device)",
    "if device.upper() == 'CUDA':\n        return x.to(device)\n    else:\n        raise ValueError(device)",
    "for place in (device, 'cpu'):\n        x = x.to(device, DTYPES[place])\n    return x",
    "table = {'where': device}\n    return x.to(device, DTYPES[table['where']])",
]


@pytest.mark.parametrize("code", STAYS)
def test_a_text_was_resolved_that_gets_to_a_question_which_stays(code):
    text = f"import re\nDTYPES = {{'cuda': half, 'cpu': float}}\ndef run(x, device='cuda'):\n    {code}\n"
    assert "device = portable.resolve" not in ported(text)
    assert "(portable.resolve(device))" not in ported(text)


def test_a_table_of_an_npu_has_a_key_for_it():
    text = "T = {'cuda': a, 'npu': b, 'cpu': c}\ndef run(x, device='cuda'):\n    return x.to(device, T[device])\n"
    assert "device = portable.resolve(device)" in ported(text)


HELPER = """
    import torch

    DTYPES = {"cuda": torch.float16, "cpu": torch.float32}

    def pick(dev):
        return DTYPES[dev]

    def outer(device):
        return pick(device)

    class Runner:
        def __init__(self, where, dtype=None):
            self.where = where

        def go(self, x):
            return x.to(DTYPES[self.where])

    class Base:
        def go(self, x):
            return x.to(DTYPES[self.device])
"""

CHOICE = '"cuda" if torch.cuda.is_available() else "cpu"'


@pytest.mark.parametrize("code", [
    f"device = {CHOICE}\npick(device)",
    f"device = {CHOICE}\nhelper.pick(dev=device)",
    f"device = {CHOICE}\nouter(device)",
    f"device = {CHOICE}\nRunner(device).go(x)",
    f"run = partial(pick, dev={CHOICE})",
    f"more = dict(dev={CHOICE})\npick(**more)",
    f"device = torch.device({CHOICE})\npick(device.type)",
    f"class Derived(Base):\n    def __init__(self):\n        self.device = {CHOICE}",
    f"def get_device():\n    return {CHOICE}\n\npick(get_device())",
    f"table[DTYPES[{CHOICE}]]",
    f"def start(**more):\n    return pick(**more)\n\nstart(dev={CHOICE})",
])  # fmt: skip
def test_a_choice_was_rewritten_whose_text_another_file_looks_up(tmp_path, code):
    head = "import torch\nimport helper\nfrom functools import partial\nfrom helper import *\n"
    head += "from helper import Base, DTYPES, Runner, outer, pick\n"
    assert "portable" not in files(tmp_path, helper=HELPER, tool=head + code + "\n")["tool"]


def test_a_result_and_a_constant_of_another_file_that_this_one_looks_up(tmp_path):
    after = files(
        tmp_path,
        config=f"""
            import torch
            WHERE = {CHOICE}

            def get_device():
                return {CHOICE}
        """,
        tool="""
            import torch
            from config import WHERE, get_device

            TABLE = {"cuda": torch.float16, "cpu": torch.float32}
            a = TABLE[WHERE]
            b = TABLE[get_device()]
        """,
    )
    assert "portable" not in after["config"]


def test_attributes_of_the_same_name_in_classes_that_have_nothing_to_do_with_each_other(tmp_path):
    after = files(
        tmp_path,
        one="""
            T = {"cuda": 1, "cpu": 2}
            class One:
                def __init__(self, device):
                    self.device = device
                    self.size = T[self.device]
        """,
        two=f"""
            import torch
            class Two:
                def __init__(self):
                    self.device = {CHOICE}
        """,
    )
    assert "self.device = portable.name()" in after["two"]


def test_texts_were_free_in_a_file_with_more_places_than_are_followed(monkeypatch):
    monkeypatch.setattr("toprope.port.conditions.asked_texts._MOST", 3)
    text = "T = {'cuda': 1, 'cpu': 2}\na = T[b or c or d]\ndef run(x, device='cuda'):\n    return x.to(device)\n"
    assert "portable" not in ported(text)
