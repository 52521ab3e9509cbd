"""The catalogue of error codes: its data, its look-ups, and codes found in real messages.

Holds src/toprope/codes; the messages are from public issues, named in the data.
"""

import datetime
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

import toprope
from toprope.codes import catalogue, codes, explain, in_text
from toprope.errors import UsageError

pytestmark = pytest.mark.process

FOLDER = Path(catalogue.__file__).parent
SIMULATED = Path(toprope.__file__).parent / "sim" / "error_codes.toml"


def test_there_are_more_than_forty_codes_with_entries_of_their_own() -> None:
    own = [code for code in codes() if not code.startswith("ERR")]
    assert len(own) > 100
    assert len(set(codes())) == len(codes())


@pytest.mark.parametrize("code", codes())
def test_every_code_says_what_it_means_and_what_to_try(code: str) -> None:
    found = explain(code)
    assert (found.code, found.of_its_own) == (code, True)
    assert found.means
    assert not found.means.endswith(".")
    assert found.try_
    assert found.sources
    for source in found.sources:
        assert source.url.startswith("https://")
        assert source.what
        assert datetime.date.fromisoformat(source.read)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("107001", "card"),  # port-and-images, field A4: the codes that threads show
        ("207005", "streams"),
        ("207008", "streams"),
        ("507014", "cube"),
        ("507015", "crashed"),
        ("507033", "could not be started"),
        ("507034", "vector cores"),
        ("507035", "vector cores"),
        ("507008", "which chip"),
        ("161001", "nothing"),
        ("161002", "refuses"),
        ("561003", "no compiled kernel"),
        ("EZ1001", "refuses a dtype"),
        ("EE1001", "argument"),
        ("EL0003", "argument"),
        ("EL0009", "stream"),
        ("E10001", "option"),
        ("EH9999", "Python part"),
        ("EE9999", "runtime"),
        ("EZ9999", "kernel"),
        ("ERR00100", "torch_npu itself (PTA): a call to CANN"),
        ("ERR01005", "an operator (OPS): an error inside it"),
        ("ERR02005", "torch.distributed (DIST)"),
    ],
)
def test_codes_that_users_meet(code: str, word: str) -> None:
    assert word in explain(code).means


def test_the_codes_of_the_simulated_card_are_all_here() -> None:
    raised = tomllib.loads(SIMULATED.read_text(encoding="utf-8"))["codes"]
    assert [code for code in raised if not explain(code).of_its_own] == []


@pytest.mark.parametrize("written", ["ez1001", " EZ1001 ", "EZ1001:", "EZ1001,"])
def test_how_a_code_is_written_does_not_matter(written: str) -> None:
    assert explain(written).code == "EZ1001"


@pytest.mark.parametrize(
    ("code", "word"),
    [("507999", "hardware"), ("107099", "environment"), ("EE1099", "EE runtime"), ("EJ9999", "inside CANN"),
     ("561199", "interface of an operator"), ("300001", "queue"), ("200099", "used up")],
)  # fmt: skip
def test_a_code_without_an_entry_is_explained_by_its_family(code: str, word: str) -> None:
    found = explain(code)
    assert (found.code, found.of_its_own) == (code, False)
    assert word in found.means


@pytest.mark.parametrize("code", ["", "107", "hello", "ERR77100", "ERR00777", "E1", "107001x", "0107001"])
def test_what_is_no_code_is_an_error_that_says_how(code: str) -> None:
    with pytest.raises(UsageError) as raised:
        explain(code)
    assert repr(code) in raised.value.what
    assert "507034" in raised.value.do


MASK_CHANGED_LATE = """
RuntimeError: Initialize:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:146 NPU function error:
c10_npu::SetDevice(device_id_), error code is 507033
[ERROR] 2025-06-24-11:20:49 (PID:528886, Device:-1, RankID:-1) ERR00100 PTA call acl api failed
[Error]: Failed to start the device.
EL0003: [PID: 528886] 2025-06-24-11:20:41.662.506 The argument is invalid.
        Failed to open device, retCode=0x7020014, deviceId=0.[FUNC:InitRawDriver][FILE:raw_device.cc][LINE:126]
"""


def test_the_codes_of_a_message_in_their_order_and_no_process_id() -> None:
    """https://github.com/Ascend/pytorch/issues/67"""
    assert [each.code for each in in_text(MASK_CHANGED_LATE)] == ["507033", "ERR00100", "EL0003", "0x7020014"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ImportError: libatb.so: cannot open shared object file: No such file or directory", ["libatb"]),
        ("RuntimeError: Failed to infer device type", ["infer-device"]),
        ("open device 0 failed, runtime result = 107001.", ["107001"]),
        ("build op model failed, result = 500001", ["500001"]),
        ("EE1001: The argument is invalid.Reason: set ASCEND_RT_VISIBLE_DEVICES:4 error", ["EE1001"]),
        ("failed, error code is 507999", ["507999"]),
        ("self not implemented for DT_BFLOAT16 EZ1001 EZ1001 EZ1001", ["EZ1001"]),
        ("wrote 507999 bytes; process 123456 ended; /dev/E12345; 2026-11-28", []),
        ("Expected one of cpu, cuda, ipu, xpu device type at start of device string: npu", ["unknown-device"]),
        ("[WARNING] HCCL: multi groups include aiv alg", ["aiv-groups"]),
        ("npu out of MEMORY. Tried to allocate 3.47 GiB", ["out-of-memory"]),
    ],
)
def test_codes_and_known_messages_in_a_text(text: str, wanted: list[str]) -> None:
    assert [each.code for each in in_text(text)] == wanted


@given(st.text())
def test_any_text_can_be_searched(text: str) -> None:
    assert len({each.code for each in in_text(text)}) == len(in_text(text))


@given(st.lists(st.sampled_from(codes()), min_size=1, max_size=6, unique=True))
def test_codes_that_are_said_to_be_codes_are_found_in_any_number(chosen: list[str]) -> None:
    text = "\n".join(f"call failed, error code is {code}" for code in chosen)
    assert [each.code for each in in_text(text)] == chosen


def test_every_pattern_and_source_is_used() -> None:
    files = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.toml")}
    named = {
        name
        for file, text in files.items()
        if file != "sources.toml"
        for each in re.findall(r"^sources = (\[.*?\])$", text, re.MULTILINE)
        for name in json.loads(each)
    }
    assert set(tomllib.loads(files["sources.toml"])) == named


@pytest.mark.parametrize(
    "change",
    [
        ("runtime.toml", 'means = "an argument of a call to CANN is not valid"', ""),
        ("runtime.toml", 'sources = ["acl", "acl-file"]', "sources = []"),
        ("runtime.toml", 'sources = ["acl", "acl-file"]', 'sources = ["nowhere"]'),
        ("letters.toml", 'code = "EE1001"', 'code = "107001"'),
        ("letters.toml", 'code = "EE1001"', 'code = "EE1001"\nnotes = "x"'),
    ],
)
def test_a_wrong_entry_is_an_error_of_the_data(tmp_path: Path, change: tuple[str, str, str]) -> None:
    file, old, new = change
    for path in FOLDER.glob("*.toml"):
        text = path.read_text(encoding="utf-8")
        if path.name == file:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=file):
        catalogue.load(tmp_path)


def test_the_room_is_light() -> None:
    code = (
        "import sys, toprope.codes; old = 'toprope.codes.catalogue' in sys.modules; toprope.codes.explain('107001'); "
        "print(old, [name for name in ('torch', 'numpy', 'typer', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False []\n", "")
