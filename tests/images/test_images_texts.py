"""Texts of the page in two languages, presets and examples by family, and the queue as each session may see it.

Holds `images.web.texts`, `images.web.page.presets` and the tables of the page.
"""

import ast
import re
import string
from pathlib import Path

import pytest

import toprope.images.web as web
from images_tiny import picture
from images_web_stand_in import StandIn
from toprope.images.request import KNOBS, RANGES
from toprope.images.web import Controller
from toprope.images.web.job_queue import State
from toprope.images.web.page.panel import panel_html, progress_html, status_html
from toprope.images.web.page.presets import EXAMPLES, PRESETS, example, preset
from toprope.images.web.page.tables import queue_html
from toprope.images.web.painter import script
from toprope.images.web.sessions import StepState
from toprope.images.web.texts import LANGUAGES, TEXTS, Words, words_for

LONG = 30.0
CHINESE = re.compile(r"[\u4e00-\u9fff]")
DEFAULTS = {
    "ip2p": {"negative": "", "steps": 50, "guidance": 7.5, "image_guidance": 1.5},
    "kontext": {"steps": 28, "guidance": 2.5},
    "hidream-e1": {"steps": 28, "guidance": 5.0, "image_guidance": 4.0, "refine_strength": 0.3, "cfg_norm": True},
}
E11 = {**DEFAULTS["hidream-e1"], "guidance": 3.0, "image_guidance": 1.5}


def names_in(text):
    return sorted((name, spec) for _, name, spec, _ in string.Formatter().parse(text) if name is not None)


def keys_used():
    """Keys of texts in the code of the page: arguments of `words` and `say`, also those with names in them."""
    found = set()
    for file in Path(web.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in ("words", "say", "self.words()"):
                found |= {each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)}
    return {each for each in found if isinstance(each, str)}


def test_every_text_has_every_language_with_the_same_values_in_it() -> None:
    for key, texts in TEXTS.items():
        assert len(texts) == len(LANGUAGES), key
        assert all(each.strip() == each != "" for each in texts), key
        assert names_in(texts[0]) == names_in(texts[1]), key
        assert not CHINESE.search(texts[0]), key
        assert CHINESE.search(texts[1]) or key in ("loras", "in_use_of"), key


def test_every_key_that_the_page_uses_is_in_the_table() -> None:
    used = {key for key in keys_used() if re.fullmatch(r"[a-z_]+", key) and key.strip("_") == key}
    assert len(used) > 60
    assert used - set(TEXTS) <= {"name"}
    states = {str(each) for each in (*State, *StepState)}
    made = {f"preset_{name}" for name in PRESETS} | {f"example_{name}" for name in EXAMPLES} | states
    made |= {f"{state}_count" for state in ("done", "failed", "cancelled")} | set(KNOBS)
    made |= {example(name, family, options).hint for name in EXAMPLES for family, options in DEFAULTS.items()}
    made |= {"left", "top", "right", "bottom", "brush", "eraser", "size", "wipe", "allocated", "reserved", "peak"}
    made |= {"yours", "of_page", "of_program"}
    assert made <= set(TEXTS)
    assert set(TEXTS) == used & set(TEXTS) | made  # and no text is left that nothing shows


@pytest.mark.parametrize(
    ("accepts", "chosen", "language"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", None, "zh"), ("en-GB,zh;q=0.9", None, "en"), ("fr", None, "en"), (None, None, "en"),
        ("", None, "en"), ("*", None, "en"), ("zh", "en", "en"), ("en", "zh", "zh"), ("ZH-tw;q=1", None, "zh"),
    ],
)  # fmt: skip
def test_the_language_is_the_first_of_the_browser_and_the_servers_goes_before(accepts, chosen, language) -> None:
    assert words_for(accepts, chosen) == Words(language)


def test_no_english_is_left_on_a_chinese_page_but_names(tmp_path) -> None:
    words = Words("zh")
    facts = Controller("m", lambda tell: StandIn()).facts()
    shown = [status_html(facts, words), panel_html(facts, words)]
    controller = Controller("m", lambda tell: StandIn())
    try:
        job = controller.job_queue.submit("a", lambda job: None)
        assert job.wait(LONG)
        shown.append(progress_html(job.view(), words=words))
    finally:
        assert controller.close(LONG)
    texts = re.sub(r"<[^>]+>", " ", " ".join(shown))
    assert CHINESE.search(texts)
    assert re.findall(r"[A-Za-z]{2,}", texts) == []
    assert "画笔" in script(None).encode().decode("unicode_escape", "ignore") or "\\u753b" in script(None)


@pytest.mark.parametrize("options", [*DEFAULTS.values(), E11])
def test_presets_have_all_knobs_of_the_model_within_their_ranges(options) -> None:
    for name in PRESETS:
        found = preset(name, options)
        assert found.keys() == options.keys()
        for knob, value in found.items():
            if knob in RANGES:
                kind, least, most = RANGES[knob]
                assert least <= value <= most
                assert isinstance(value, kind)
    assert preset("authors", options) == options
    assert preset("draft", options)["steps"] < options["steps"]
    assert preset("stronger", options)["guidance"] > options["guidance"] > preset("closer", options)["guidance"]
    assert preset("authors", {}) == {}  # before the model is loaded
    assert preset("draft", {"steps": 5})["steps"] == 4  # of a distilled model: fewer steps give no picture


def test_examples_follow_the_advice_of_the_authors_of_each_model() -> None:
    full = DEFAULTS["hidream-e1"]
    assert 3 <= example("style", "hidream-e1", full).values["image_guidance"] <= 4
    assert 2 <= example("part", "hidream-e1", full).values["image_guidance"] <= 3
    assert example("part", "hidream-e1", E11).values["image_guidance"] > 1.5  # its scale is another one
    assert "image guidance" not in Words()(example("style", "kontext", DEFAULTS["kontext"]).hint)
    assert "2 to 3" in Words()(example("part", "hidream-e1", full).hint)
    assert example("weather", None, {}).values == {}


def test_each_session_sees_the_whole_queue_and_only_its_own_instructions(tmp_path) -> None:
    """Of the edits of others, a page showed a number at most."""
    picture(40, 30).save(tmp_path / "cat.png")
    engine = StandIn(steps=2, held=True)
    controller = Controller("tiny", lambda tell: engine)
    try:
        controller.load()
        mine, other = controller.join(), controller.join()
        for session in (other, mine):
            controller.bring(session, str(tmp_path / "cat.png"))
        jobs = [
            controller.edit(other, {"instruction": "a <secret>"}),
            controller.edit(mine, {"instruction": "make it <b>snow"}),
        ]
        jobs.append(controller.edit_all(mine, {"instruction": "all"}, [str(tmp_path / "cat.png")] * 3))
        found = queue_html(controller.places(mine))
        assert re.findall(r'data-owner="(\w+)"', found) == ["of_page", "yours", "yours"]
        assert "secret" not in found
        assert "make it &lt;b&gt;snow" in found
        assert "3. waiting" in found
        assert "3 pictures" in found
        assert "a &lt;secret&gt;" in queue_html(controller.places(other))
        assert "你的" in queue_html(controller.places(mine), Words("zh"))
        for job in jobs:
            job.cancel()
        engine.let_go(9)
        assert all(job.wait(LONG) for job in jobs)
        assert queue_html(controller.places(mine)) == ""
    finally:
        engine.let_go(9)
        assert controller.close(LONG)
