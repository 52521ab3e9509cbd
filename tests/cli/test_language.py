"""The command line in the user's language: help, the report of a run, the doctor; JSON and statuses stay.

Holds `cli.help_text` and everything that shows a `Message`; the translations are locale/zh.po.
"""

import json
import os
import re
import subprocess
import sys

import pytest

import messages as tool
from toprope.cli import main
from toprope.cli.app import VERBS
from toprope.cli.launch.select_target import Choice, Probe
from toprope.cli.output import doctor_text
from toprope.cli.reports.run_report import Outcome, as_dict, as_text
from toprope.cli.reports.trace_file import TraceFile
from toprope.device.doctor.diagnosis import diagnose
from toprope.device.host.ascend import AscendMachine
from toprope.device.host.machine import DeviceResult, DtypeResult, Examination, Facts, Step
from toprope.messages import Message, catalogue, local, shown_in
from toprope.sim.metrics.counters import CardCounters, Counters, HostSite, Lack, LackRecord, Site
from toprope.sim.spec import SimSpec
from toprope.terminal import breakable, cells, field, render, table

CHINESE = re.compile("[一-鿿]")
COMMANDS = re.compile(
    r"`[^`]*`|toprope [a-z]+|pip \w+ \S+|npu-smi info|ImportError: .*? directory|RuntimeError: failed"
)
ENGLISH = re.compile(r"(?<![\w.:/-])[a-z]{2,} [a-z]{2,}(?![\w.:/-])")
"""Two English words next to each other: a text that was left out."""


def english_in(text: str) -> list[str]:
    return ENGLISH.findall(COMMANDS.sub("", text))


@pytest.fixture(autouse=True)
def no_language(monkeypatch, tmp_path):
    for name in ("TOPROPE_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize(
    ("variables", "chinese"),
    [
        ({}, False),
        ({"LANG": "zh_CN.UTF-8"}, True),
        ({"LANG": "zh_TW"}, True),
        ({"LANG": "zh"}, True),
        ({"LANG": "zha_CN"}, False),
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LC_MESSAGES": "zh_CN.UTF-8", "LANG": "en_US.UTF-8"}, True),
        ({"LC_ALL": "C", "LC_MESSAGES": "zh_CN.UTF-8", "LANG": "zh_CN.UTF-8"}, False),
        ({"LC_ALL": "", "LANG": "zh_CN.GB18030"}, True),
        ({"TOPROPE_LANG": "zh", "LC_ALL": "C"}, True),
        ({"TOPROPE_LANG": "en", "LC_ALL": "zh_CN.UTF-8"}, False),
        ({"TOPROPE_LANG": "auto", "LC_ALL": "zh_CN.UTF-8"}, True),
        ({"TOPROPE_LANG": "klingon", "LANG": "zh_CN.UTF-8"}, True),
    ],
)
def test_the_language_is_that_of_the_setting_else_of_the_locale(variables, chinese, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["--help"]) == 0
    assert ("用法：" in capsys.readouterr().out) is chinese


def test_a_projects_file_can_set_it(tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text('[tool.toprope]\nlang = "zh"\n')
    assert main([]) == 0
    assert "可以从这三步开始" in capsys.readouterr().out


def test_the_language_of_one_call_is_not_that_of_the_next(monkeypatch, capsys):
    monkeypatch.setenv("TOPROPE_LANG", "zh")
    main(["--help"])
    assert local(Message("no problem")) == "no problem"
    monkeypatch.setenv("TOPROPE_LANG", "en")
    main(["--help"])
    assert capsys.readouterr().out.endswith(f"{VERBS['stop']}\n")


def commands():
    """The words of every command, with its typer command."""
    from typer.main import get_command

    from toprope.cli.app import app

    root = get_command(app)
    yield [], root
    for name in VERBS:
        verb = root.get_command(None, name)
        yield [name], verb
        yield from (([name, below], command) for below, command in getattr(verb, "commands", {}).items())


@pytest.mark.parametrize(
    ("words", "command"), [pytest.param(*each, id=" ".join(["toprope", *each[0]])) for each in commands()]
)
def test_the_help_of_every_command_is_translated(words, command, monkeypatch, capsys):
    monkeypatch.setenv("TOPROPE_LANG", "zh")
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"用法：{' '.join(['toprope', *words])} ")
    below = getattr(command, "commands", {})
    own = [
        text for text in tool.of_command(command) if all(text not in tool.of_command(each) for each in below.values())
    ]
    for text in [*own, "Show this message and exit."]:
        assert squeezed(catalogue("zh")[text]) in squeezed(shown)
    assert max(map(cells, shown.splitlines())) <= 80


def test_verbs_have_their_translated_lines(monkeypatch, capsys):
    monkeypatch.setenv("TOPROPE_LANG", "zh")
    main(["--help"])
    shown = squeezed(capsys.readouterr().out)
    assert all(squeezed(catalogue("zh")[line]) in shown for line in VERBS.values())


def card(**changes: int) -> CardCounters:
    figures = {
        "index": 0, "physical": 0, "capacity": 64 << 30, "allocated": 0, "peak_allocated": 1 << 20, "reserved": 0,
        "peak_reserved": 1 << 20, "allocations": 5, "oom_retries": 1, "ooms": 2,
    } | changes  # fmt: skip
    return CardCounters(**figures)


def process(**changes: object) -> Counters:
    facts = {
        "pid": 1, "chip": "910B3", "torch_version": "2.13.0", "hbm_by_user": True, "cards": (card(),),
        "copies_to_card": 58, "bytes_to_card": 11_300_000, "copies_from_card": 14, "bytes_from_card": 2_100,
        "copies_between": 0, "bytes_between": 0, "synchronisations": 14, "operator_calls": 6310,
        "operators": {"aten::add": 6300, "aten::upsample_linear1d": 10},
        "sites": (Site("aten::_local_scalar_dense", "/work/train.py", 5, 12, 12),),
        "host_sites": (HostSite("aten::special_entr", "/work/train.py", 44, 58, 100, 200),),
        "torch_npu": "v2.7.1",
        "lacks": (LackRecord("aten::histc", Lack.DTYPE, "int32", 1, 5, "aten::histc has no kernel"),),
    }  # fmt: skip
    known = Counters.__dataclass_fields__
    return Counters(**{name: value for name, value in (facts | changes).items() if name in known})


OUTCOMES = [
    Outcome(
        Choice("sim", SimSpec("910B3"), Probe("not installed"), automatic=True), 8.4, 1, (process(), process(pid=2)),
        TraceFile("trace.json", 2, 1000, 3), mask="0,9", folder="/work",
    ),
    Outcome(Choice("sim", SimSpec("910B3")), 8.4, 0, ()),
    Outcome(Choice("sim", SimSpec("910B3")), 8.4, -9, (process(cards=(), operator_calls=0, copies_to_card=0),)),
    Outcome(Choice("npu", probe=Probe("works", "2.13.0", 2, "Ascend910B3")), 8.4, 0),
    Outcome(Choice("cpu"), 8.4, 0),
]  # fmt: skip


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_report_of_a_run_is_translated_and_its_json_is_not(outcome):
    english, facts = as_text(outcome), json.dumps(as_dict(outcome))
    with shown_in("zh"):
        chinese = as_text(outcome)
        assert json.dumps(as_dict(outcome)) == facts
    assert not CHINESE.search(english)
    assert len(chinese.splitlines()) == len(english.splitlines())
    assert english_in(chinese) == []
    assert chinese.startswith("toprope：")


FACTS = [
    Facts(python="3.11.7", executable="/usr/bin/python3"),
    Facts(
        python="3.13.1",
        packages={"torch": "2.13.0", "torch-npu": "2.12.0"},
        ascend=AscendMachine(cards=(0, 1), refused=(1,), owner="HwHiAiUser:HwHiAiUser", container=True, mask="1,0"),
        environment={"ASCEND_RT_VISIBLE_DEVICES": "1,0", "ASCEND_VISIBLE_DEVICES": "5", "TOPROPE_LANG": "zh"},
        examination=Examination(
            torch="2.13.0",
            torch_npu_error="ImportError: libhccl.so: cannot open shared object file: No such file or directory",
            import_error="RuntimeError: failed",
            absent={"npu": Message("torch_npu is not installed"), "cuda": Message("no GPU is visible")},
            ended=Message("it did not answer within {wait:.0f} s", wait=60),
            doing=Message("train on {device}", device="npu:0"),
            devices=(
                DeviceResult(
                    "cpu", "cpu", title="EPYC", total=8 << 30, free=4 << 30, best="float32",
                    dtypes=(
                        DtypeResult("float32", True, milliseconds=1.0), DtypeResult("float16", True, milliseconds=50.0),
                        DtypeResult("bfloat16", False, failed="matmul"),
                    ),
                    step=Step(first=1.0, last=0.5, milliseconds=14.0),
                ),
            ),
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize("facts", FACTS)
def test_the_doctor_is_translated_and_its_json_is_not(facts):
    findings = diagnose(facts)
    plain = json.dumps(doctor_text.as_dict(facts, findings))
    english = render(doctor_text.report(facts, findings), doctor_text.devices_text(facts, findings))
    with shown_in("zh"):
        chinese = render(doctor_text.report(facts, findings), doctor_text.devices_text(facts, findings))
        assert json.dumps(doctor_text.as_dict(facts, findings)) == plain
    assert not CHINESE.search(english)
    assert findings
    assert english_in(chinese) == []


@pytest.mark.parametrize(
    "words",
    [
        ["doctor", "107001", "--json"],
        ["doctor", "no such text"],
        ["doctor", "--images", "107001"],
        ["explain", "nothing"],
        ["cache", "clear", "nothing"],
        ["run"],
        ["run", "--json", "nothing.py"],
        ["nothing"],
    ],
)
def test_statuses_and_json_are_the_same_in_every_language(words, monkeypatch, capsys):
    found = []
    for language in ("en", "zh"):
        monkeypatch.setenv("TOPROPE_LANG", language)
        found.append((main(words), capsys.readouterr().out))
    assert found[0] == found[1]


def test_lines_of_chinese_end_within_the_width():
    text = Message(
        "gradient checkpointing (torch.utils.checkpoint; estimate: fits where the outputs of all blocks and the inside "
        "of one are at most {room}; activations are {activations})",
        room="1 GiB",
        activations="2 GiB",
    )
    with shown_in("zh"):
        lines = render(*field("结论", text, label_width=14, indent=2), width=60).splitlines()
        rows = render(table([["a", text]], ("a", "b"), wrapped=(1,)), width=60).splitlines()
    assert len(lines) > 1
    assert len(rows) > 2
    assert max(map(cells, [*lines, *rows])) <= 60
    assert "\x1f" not in "".join([*lines, *rows])  # the marks of places where a line may end
    assert squeezed("".join(lines)) == squeezed("结论" + text.translated(catalogue("zh")))
    assert not any(line.lstrip().startswith(("，", "。", "）", "、")) for line in lines)


def test_a_name_in_a_text_is_not_broken():
    path = "/home/用户/模型训练/第二个程序.py:44"
    text = Message("{name} works but sees no card", name=path)
    with shown_in("zh"):
        shown = render(*field("x", text, path, label_width=4), width=40)
    assert shown.count(path) == 2


def test_a_text_without_chinese_is_not_changed():
    assert breakable("a b") == "a b"
    assert cells("中a") == 3


@pytest.mark.process
@pytest.mark.parametrize(
    ("variables", "first"), [({"LC_ALL": "zh_CN.UTF-8"}, "toprope 帮助"), ({"TOPROPE_LANG": "en"}, "toprope takes")]
)
def test_a_process_speaks_the_language_of_its_variables(variables, first):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-m", "toprope"],
        env=environment | variables,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(first)


def test_pages_are_printed_in_chinese_where_they_are_translated(monkeypatch, capsys):
    monkeypatch.setenv("TOPROPE_LANG", "zh")
    assert main(["explain", "SizeError"]) == 0
    assert "## 处理办法" in capsys.readouterr().out
    assert main(["explain", "docs/errors/build.zh.md"]) == 0
    assert "[" not in (page := capsys.readouterr().out)
    assert ".zh" not in page
    assert main(["explain", "doctor"]) == 0
    assert "BuildError (toprope explain build)" in capsys.readouterr().out
    assert main(["explain", "ci"]) == 0
    assert capsys.readouterr().out.startswith("# CI")
    assert main(["explain"]) == 0
    assert re.search(r"^start +入门$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.process
@pytest.mark.parametrize(
    ("encoding", "begins"), [("ascii", "toprope takes"), ("utf-8", "toprope 帮助"), ("gbk", "toprope 帮助")]
)
def test_chinese_was_question_marks_on_a_terminal_that_cannot_show_it(encoding, begins):
    environment = os.environ | {"TOPROPE_LANG": "zh", "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-m", "toprope"], capture_output=True, env=environment, timeout=60)
    assert done.stdout.decode(encoding).startswith(begins)
