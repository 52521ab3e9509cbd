"""Texts that can be translated: a str in all respects, and a catalogue that has every one of them.

Holds `toprope.messages`, and with scripts/messages.py that locale/zh.po has each text.
"""

import copy
import json
import pickle
import re

import pytest

import messages as tool
from toprope.messages import LANGUAGES, Message, catalogue, joined, language, local, pack, shown_in, unpack
from toprope.messages import _read as read

CATALOGUE = {
    "{number} problems": "{number} 个问题",
    "no {kind}: {why}": "没有 {kind}：{why}",
    ", ": "、",
    "a cat": "猫",
}
WHY = Message("no {kind}: {why}", kind="npu", why=Message("{number} problems", number=2))
TEXTS = [
    Message("{number} problems", number=2),
    Message("{}"),
    WHY,
    joined(", ", [WHY, "b", Message("a cat")]),
    WHY + "!",
]


def test_a_message_is_its_english_text():
    assert WHY == "no npu: 2 problems"
    assert json.dumps([WHY]) == '["no npu: 2 problems"]'
    assert {WHY: 1}["no npu: 2 problems"] == 1
    assert Message("{}") == "{}"
    assert repr(WHY) == "'no npu: 2 problems'"


def test_it_is_translated_with_the_messages_in_it():
    assert WHY.translated(CATALOGUE) == "没有 npu：2 个问题"
    assert joined(", ", [WHY, "b", Message("a cat")]).translated(CATALOGUE) == "没有 npu：2 个问题、b、猫"
    assert Message("a dog").translated(CATALOGUE) == "a dog"


def test_sums_with_other_texts_are_translated():
    text = Message("a cat") + " (1)"
    text += Message("{number} problems", number=2)
    assert (text, text.translated(CATALOGUE)) == ("a cat (1)2 problems", "猫 (1)2 个问题")
    assert ("x " + Message("a cat")).translated(CATALOGUE) == "x 猫"


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda text: pickle.loads(pickle.dumps(text)),
        lambda text: unpack(json.loads(json.dumps(pack(text)))),
    ],
    ids=["deepcopy", "pickle", "json"],
)
def test_copies_can_be_translated(text, copied):
    found = copied(text)
    assert found == text
    assert found.translated(CATALOGUE) == text.translated(CATALOGUE)


def test_plain_texts_are_packed_as_they_are():
    assert pack("a") == "a"
    assert unpack("a") == "a"


def test_texts_are_english_outside_of_the_context():
    text = Message("no problem")
    with shown_in("zh"):
        assert language() == "zh"
        assert local(text) == "没有问题"
        with shown_in("en"):
            assert local(text) == "no problem"
        assert local("no problem") == "no problem"  # no Message: a name of the user's
    assert (language(), local(text)) == ("en", "no problem")


def test_a_catalogue_is_read_as_gettext_has_it():
    text = """# comment
msgid ""
msgstr "Language: zh\\n"

#: file.py
msgid ""
"two\\n"
"lines"
msgstr ""
"两\\n"
"行"

msgid "a \\"quote\\""
msgstr "“引号”"

msgid "not translated"
msgstr ""
"""
    assert read(text) == {"two\nlines": "两\n行", 'a "quote"': "“引号”"}


@pytest.fixture(scope="module")
def wanted():
    return tool.texts()


def test_every_text_is_translated_with_the_same_fields(wanted):
    assert len(wanted) > 600
    for name in LANGUAGES[1:]:
        assert tool.faults(wanted, catalogue(name)) == [], "python scripts/messages.py --update adds new texts"


def test_translations_are_chinese():
    """All but names, numbers and marks, each of which was looked at."""
    same = {"ok", " are", " is", "kernels", "rank {rank}: ", "the CPU", "to {doing}{place}"}
    same.add("hidream-e1, hidream-e1-full, ip2p, ip2p-xl, kontext.")
    words = {text: one for text, one in catalogue("zh").items() if re.search("[A-Za-z]{2}", tool.without_fields(text))}
    assert {text for text, one in words.items() if not re.search("[一-鿿]", one)} <= same


def test_files_of_the_tool_are_read_back(wanted):
    text = tool.HEADER.format(name="zh") + "\n".join(tool.entry(one, f"<{one}>", "file.py") for one in wanted)
    assert read(text) == {one: f"<{one}>" for one in wanted}


@pytest.mark.parametrize(
    ("text", "translation", "fault"),
    [
        ("{number} lines", "行", "other fields"),
        ("{number} lines", "{count} 行", "other fields"),
        ("{size:.1f} s", "{size} 秒", "other fields"),
        ("{number} line{s}", "{number} 行", None),  # s is English grammar
        ("{number} lines", "", "not translated"),
    ],
)
def test_what_a_translation_lacks_is_found(text, translation, fault):
    found = tool.faults({text: "file.py"}, {text: translation} if translation else {})
    assert [one.partition(":")[0] for one in found] == ([fault] if fault else [])
    assert tool.faults({}, {text: "x"})[0].startswith("no longer there")


def test_a_text_that_is_no_literal_is_an_error():
    import ast

    with pytest.raises(ValueError, match="no literal"):
        list(tool.in_source(ast.parse("Message(text, a=1)")))
    assert list(tool.in_source(ast.parse("joined(', ', parts); Message('{a} {b}', a=1, b=2); Message('no card')"))) == [
        ", ",
        "no card",
    ]
