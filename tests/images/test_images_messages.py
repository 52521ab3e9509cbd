"""Errors and notices of the engine on a Chinese page, and the choice of the page's language.

Holds `images.web.messages` and `images.web.language`: the sources of the engine are read for their texts.
"""

import ast
import asyncio
import re
import string
from pathlib import Path

import pytest

import toprope.errors as errors
import toprope.images as images
from toprope.images.request import EditRequest
from toprope.images.web.entries import Entry, parameters
from toprope.images.web.form import read_box, read_seed
from toprope.images.web.job_queue import Problem, State, View
from toprope.images.web.language import COOKIE, SWITCH, LanguageChoice, marked
from toprope.images.web.messages import CHINESE, translated
from toprope.images.web.page.panel import problem_html, progress_html
from toprope.images.web.page.tables import ended_html, parameters_html
from toprope.images.web.sessions import Step, StepState
from toprope.images.web.texts import LANGUAGES, Words

FOLDER = Path(images.__file__).parent
ZH = Words("zh")
HAN = re.compile(r"[\u4e00-\u9fff]")

SHOWN = (
    "request.py", "resolve.py", "callbacks.py", "execution/dtypes.py", "execution/host_operators.py", "engine.py",
    "pipeline_manager.py", "lora/adapters.py", "lora/files.py", "families/base.py", "families/finding.py",
    "families/loading.py", "families/hidream/family.py", "memory/fallback.py", "picture/files.py", "picture/masks.py",
    "refining/openai.py", "refining/local.py", "refining/opening.py", "refining/prompt_templates.py", "web/copies.py",
    "web/job_queue.py", "web/form.py", "web/loading.py", "web/painter.py", "web/controller.py", "web/sessions.py",
)  # fmt: skip
"""Modules whose errors the page shows."""

TERMINAL = {
    "web/sessions.py": ("_open", "_hold"),
    "refining/openai.py": ("__init__",),
    "refining/local.py": ("__init__", "_load"),
    "refining/opening.py": ("open_refiner", "_read"),
}
"""Functions of these modules whose errors are shown in the terminal, before there is a page."""

MAKERS = (*errors.__all__, "Problem", "cls", "notice", "_notice", "NotRefined", "_Again", "NoAnswer")
"""Names of calls that make an error, a notice or the reason of one."""

FACT = "‹{}›"


def texts_of(node):
    """The texts that an expression can be, with a mark in the place of each value; none where it is no text."""
    if isinstance(node, ast.IfExp):
        return [*texts_of(node.body), *texts_of(node.orelse)]
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if not isinstance(node, ast.JoinedStr):
        return []
    found = [""]
    for at, each in enumerate(node.values):
        inner = each.value if isinstance(each, ast.FormattedValue) else each
        parts = texts_of(inner) if isinstance(inner, ast.IfExp | ast.Constant) else [FACT.format(at)]
        found = [text + part for text in found for part in parts]
    return found


def errors_in(file):
    """Sentences and advice of the errors that a module makes, and its notices, with the line."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    left_to = TERMINAL.get(str(file.relative_to(FOLDER)), ())
    terminal = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name in left_to]
    left_out = {id(node) for each in terminal for node in ast.walk(each)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or id(node) in left_out or not node.args:
            continue
        name = ast.unparse(node.func).split(".")[-1]
        if name in MAKERS:
            given = {each.arg: each.value for each in node.keywords}
            for part in (node.args[0], given.get("do", node.args[2] if len(node.args) > 2 else None)):
                for text in texts_of(part):
                    if re.sub(r"‹\d+›", "", text).strip(" :."):
                        yield text, f"{file.relative_to(FOLDER)}:{node.lineno}"


@pytest.mark.parametrize("module", SHOWN)
def test_every_error_that_the_page_shows_has_a_chinese_sentence_that_keeps_its_facts(module):
    """Errors and notices were English on a Chinese page."""
    found = list(errors_in(FOLDER / module))
    assert found, module
    for text, where in found:
        shown = translated(text, "zh")
        assert HAN.search(shown) or text.startswith("pip "), f"{where}: {text!r} has no translation"
        assert sorted(re.findall(r"‹\d+›", text)) == sorted(re.findall(r"‹\d+›", shown)), f"{where}: {shown!r}"


def test_the_table_has_no_sentence_twice_and_the_same_facts_on_both_sides():
    def names(text):
        return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name)

    for english, chinese in CHINESE.items():
        assert names(english) == names(chinese), english
        assert HAN.search(chinese) or english == "loras", english
        assert not HAN.search(english)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: read_seed("x y"), "'x y' 不是随机种子。"),
        (lambda: EditRequest("a.png", "b", steps=0).validate(), "步数 的值是 0，应为 1 到 1000 的整数。"),
        (
            lambda: EditRequest("a.png", "b", guidance=float("nan")).validate(),
            "引导强度 的值是 nan，应为 0 到 100 的数。",
        ),
        (
            lambda: EditRequest("a.png", "b", fit="squash").validate(),
            "缩放方式 的值是 'squash'，应为以下之一：stretch, crop, pad。",
        ),
        (lambda: read_box((50, 0, 50, 9)), "矩形里没有任何区域。"),
    ],
)
def test_real_errors_are_translated_with_their_facts(make, said):
    with pytest.raises(errors.UsageError) as caught:
        make()
    problem = Problem.of(caught.value)
    html = problem_html(problem, ZH)
    assert said.replace("'", "&#x27;") in html
    assert problem.looked_at.replace("'", "&#x27;") in html
    assert problem_html(problem, Words()).count("give") + problem_html(problem, Words()).count("seed") > 0
    assert not HAN.search(problem_html(problem, Words()))


def test_notes_tables_and_what_failed_are_translated_and_what_users_wrote_is_not():
    notes = ["cat.png: turned upright", "cat.png: converted from Display P3 to sRGB", "something nobody translated"]
    shown = progress_html(View(State.DONE), notes=notes, words=ZH)
    assert "cat.png：已按 EXIF 转正" in shown
    assert "已从 Display P3 转换为 sRGB" in shown
    assert "something nobody translated" in shown
    request = {"instruction": "there is no picture.", "steps": 4}
    record = {"request": request, "notices": ["the instruction is used as it was given: no answer"], "seconds": 1.0}
    table = parameters_html(parameters(Entry("there is no picture.", Path("a"), Path("b"), 3, record)), ZH)
    assert table.count("there is no picture.") == 2  # a name and an instruction, though they look like an error
    assert "按原文使用指令：no answer" in table
    assert "<th>步数</th><td>4</td>" in table
    problem = {"what": "the queue is full.", "looked_at": "", "do": "try again in a while"}
    step = Step(1, None, StepState.FAILED, "a", {}, {"instruction": "the queue is full."}, problem)
    ended = ended_html([step], ZH)
    assert ended.count("队列已满。") == 1
    assert ended.count("the queue is full.") == 1


def test_facts_that_are_phrases_themselves_are_translated_too():
    assert translated("there are a rectangle and a painted mask.", "zh") == "同时给出了矩形和画出的蒙版。"
    guard = "the model gave numbers that are not finite (picture 1 of 2) in bf16; it goes on in fp32, and stays so"
    assert translated(guard, "zh") == "模型以 bf16 输出了非有限数值（第 1/2 张图片）；改用 fp32 继续，此后保持不变"
    assert translated("there are a rectangle and a painted mask.", "en") == "there are a rectangle and a painted mask."


# The switch


class Recorder:
    """An ASGI application that keeps the scope it was given and answers with a page in two pieces."""

    PAGE = b'<!doctype html><html\n lang="en" style="x"><head><meta charset="utf-8"></head><body>\xe4\xbd\xa0</body>'

    def __init__(self):
        self.scope = None

    async def __call__(self, scope, receive, send):
        self.scope = scope
        headers = [(b"content-length", str(len(self.PAGE)).encode()), (b"content-type", b"text/html; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.PAGE[:50], "more_body": True})
        await send({"type": "http.response.body", "body": self.PAGE[50:]})


def asked(path="/", query=b"", cookie=None, method="GET", **headers):
    """The answer of the application with the switch: status, headers, body, and what the application was asked."""
    own, sent = Recorder(), []
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    given += [] if cookie is None else [(b"cookie", cookie.encode())]
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": given}

    async def send(message):
        sent.append(message)

    asyncio.run(LanguageChoice(own)(scope, None, send))
    body = b"".join(each.get("body", b"") for each in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), body, own.scope and dict(own.scope["headers"])


def test_a_link_of_the_switch_sets_a_cookie_and_the_page_comes_in_that_language():
    for language in LANGUAGES:
        assert f"?language={language}" in SWITCH
        status, headers, _, _ = asked(query=f"language={language}".encode())
        assert status == 303
        assert headers[b"location"] == b"./"  # also behind a proxy with a path of its own
        cookie = headers[b"set-cookie"].decode().partition(";")[0]
        status, headers, body, seen = asked(cookie=f"other=1; {cookie}", accept_language="fr", accept_encoding="gzip")
        tag = {"en": "en", "zh": "zh-CN"}[language]
        assert seen == {b"cookie": f"other=1; {cookie}".encode(), b"accept-language": tag.encode()}
        assert int(headers[b"content-length"]) == len(body)
        assert f'lang="{tag}"'.encode() in body
        assert body.index(b"navigator") < body.index(b"<meta")
        assert Words(language) == Words(tag.partition("-")[0])


@pytest.mark.parametrize("cookie", [None, "", "a=b", f"{COOKIE}=fr", f"{COOKIE}=", f"x{COOKIE}=zh", "\x7f; ;;=;"])
def test_without_a_choice_a_page_goes_through_as_it_is(cookie):
    status, _, body, seen = asked(query=b"language=fr&x=1", cookie=cookie, accept_language="zh")
    assert (status, body, seen[b"accept-language"]) == (200, Recorder.PAGE, b"zh")


def test_events_of_the_page_follow_the_choice_and_their_bodies_stay():
    _, _, body, seen = asked("/gradio_api/run/edit", cookie=f"{COOKIE}=zh", method="POST", accept_language="en")
    assert seen[b"accept-language"] == b"zh-CN"
    assert body == Recorder.PAGE


def test_a_page_without_a_head_is_left_whole():
    assert marked(b"no page at all", "zh") == b"no page at all"
