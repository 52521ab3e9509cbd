"""Refined instructions: prompts and answers of models, servers that fail, and a chat model in a folder.

Holds `images.refining`.
"""

import base64
import io
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from images_tiny import QUIET, picture, tiny
from toprope.errors import UsageError
from toprope.images import EditRequest, Engine
from toprope.images.families import named
from toprope.images.refining.openai import OpenAI, as_data_url
from toprope.images.refining.opening import Provider, Refiner, open_refiner
from toprope.images.refining.prompt_templates import NoAnswer, read_answer, template

pytestmark = QUIET
CAT = picture(40, 30)
GOOD = {"caption": "a cat", "instruction": "Cover the lawn with snow.", "description": "A cat on a snowy lawn."}
LINES = "A cat on a lawn.\nCover the lawn with snow.\nA cat on a snowy lawn."


class Server(ThreadingHTTPServer):
    """A server that gives the answers of the test, one entry of `answers` a request, the last one again and again."""

    daemon_threads = True

    def __init__(self):
        self.answers, self.asked, self.go = [], [], threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def refiner(self, *answers, options="model=m&timeout=5") -> Refiner:
        self.answers, self.asked = list(answers), []
        made = open_refiner(f"openai:{self.url}?{options}")
        made.provider.pause = 0.0
        return made


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments) -> None:
        pass

    def do_GET(self) -> None:
        self.send({"data": [{"id": "the-first"}, {"id": "another"}]})

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append((self.path, dict(self.headers), body))
        answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        if callable(answer):
            answer(self)
        elif isinstance(answer, int):
            self.send_error(answer)
        else:
            self.send({"choices": [{"message": {"role": "assistant", "content": answer}}]})

    def send(self, row) -> None:
        data = json.dumps(row).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def raw(self, data: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def server():
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.go.set()
    made.shutdown()
    made.server_close()
    thread.join()


# ---- answers


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD),
        f"```json\n{json.dumps(GOOD, indent=2)}\n```",
        f"First I look at the picture {{of a cat}}.\n{json.dumps(GOOD)}\nDone.",
        json.dumps({"Editing Instruction": GOOD["instruction"], "Target image description": GOOD["description"]}),
        json.dumps({"instruction": "a draft"}) + json.dumps(GOOD),
        LINES,
        f"```\n{LINES}\n```",
        LINES.replace("\n", "\r\n\r\n"),
        "Line 1: A cat on a lawn.\nLine 2: Cover the lawn with snow.\nLine 3: A cat on a snowy lawn.",
        "line 1 - A cat.\nLINE 2 - Cover the lawn with snow.\nline 3 - A cat on a snowy lawn.",
        "Line 1 (caption): a\nLine 2 (instruction): Cover the lawn with snow.\nLine 3 (x): A cat on a snowy lawn.",
        "1. A cat.\n2. Cover the lawn with snow.\n3. A cat on a snowy lawn.",
        "Caption: a\nEditing Instruction: Cover the lawn with snow.\nTarget Image Description: A cat on a snowy lawn.",
        "- a\n- **Line 2:** Instruction: Cover the lawn with snow.\n- **Description**: A cat on a snowy lawn.",
        'a\n"Cover the lawn with snow."\nA cat on a snowy lawn.',
    ],
)
def test_an_answer_is_json_or_three_lines(text) -> None:
    found = read_answer(text)
    assert found.instruction == "Cover the lawn with snow"
    assert found.description == "A cat on a snowy lawn."
    assert found.form == ("json" if "{" in text else "lines")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the answer was empty"),
        (" \n\t", "the answer was empty"),
        ("Cover the lawn with snow.\nA cat on snow.", "2 lines instead of three"),
        ("I am sorry, I cannot help with that.", "1 line instead of three"),
        (LINES + "\nAnything else?", "4 lines instead of three"),
        ('{"instruction": "", "description": "x"}', "1 line instead of three"),
        ('{"instruction": 3}', "1 line instead of three"),
        ('{"instruction": "cut of', "1 line instead of three"),
        ("a\nLine 2:\nb", "which is the instruction, was empty"),
        ("a\n.\nb", "which is the instruction, was empty"),
        (json.dumps({"instruction": "x" * 3000}), "has 3000 characters"),
        ("a\nb\n" + "x" * 3000, "description in the answer has 3000 characters"),
        ("{" * 5000, "1 line instead of three"),
        ('{"a":' * 2000, "1 line instead of three"),
    ],
)
def test_what_is_no_answer_has_a_reason(text, why) -> None:
    with pytest.raises(NoAnswer, match=why):
        read_answer(text)


def test_words_that_look_like_labels_stay() -> None:
    for kept in (
        "3 cats join the dog",
        "Line the road with trees",
        "Description of the shop: remove it",
        "2nd car, red",
    ):
        assert read_answer(f"a\n{kept}\nb").instruction == kept


pieces = st.sampled_from(
    ["Line 2:", "{", "}", '"instruction":', "\n", "```json", "**", "1.", '"', " ", ".", "snow", ","]
)


@given(st.one_of(st.text(max_size=60), st.lists(pieces, max_size=20).map("".join)))
def test_no_text_makes_an_empty_instruction(text) -> None:
    class Says(Provider):
        def ask(self, picture, asked):
            return text

        def describe(self):
            return {"provider": "says"}

    found = Refiner(Says()).refine(CAT, " make it snow ")
    assert found.instruction.strip()
    assert found.refined or (found.instruction == "make it snow" and found.reason)
    assert json.loads(json.dumps(found.as_json()))["given"] == "make it snow"


@given(st.text(min_size=1, max_size=200), st.booleans())
def test_the_template_ends_with_the_instruction_as_it_is(text, seen) -> None:
    """Braces in a user's text broke the original's `format`."""
    made = template(text, seen=seen)
    assert made.endswith(text)
    assert len(made) - len(text) > 2000
    assert ("You cannot see the picture" in made[: -len(text)]) is not seen


# ---- servers


def test_29_the_server_gets_the_whole_template_and_the_picture(server, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-mine")
    refiner = server.refiner(json.dumps(GOOD))
    found = refiner.refine(picture(3000, 1500), "winter {please}")
    ((path, headers, body),) = server.asked
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret-of-mine"
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 500, 0.2)
    system, user = body["messages"]
    assert system["role"] == "system"
    shown, told = user["content"]
    assert told == {"type": "text", "text": template("winter {please}")}
    start, _, data = shown["image_url"]["url"].partition(",")
    assert start == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (1024, 512)
    assert (found.refined, found.instruction, found.reason) == (True, "Cover the lawn with snow", "")
    assert (found.form, found.saw_picture, found.description) == ("json", True, GOOD["description"])
    assert "secret" not in json.dumps(found.as_json()) + json.dumps(refiner.describe())


def slow(handler) -> None:
    handler.server.go.wait(60)


def drops(handler) -> None:
    """Sends a byte now and then: no wait for a packet is ever too long."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        if handler.server.go.wait(0.02):
            return
        try:
            handler.wfile.write(b" ")
        except OSError:
            return


def redirect(handler) -> None:
    handler.send_response(307)
    handler.send_header("Location", "/elsewhere")
    handler.end_headers()


@pytest.mark.parametrize(
    ("answer", "why", "tries"),
    [
        ("Cover it.\nA cat.", "2 lines instead of three", 1),
        ("", "the answer was empty", 1),
        (None, "the answer was empty", 1),
        (500, "the server said HTTP 500 Internal Server Error, 2 times", 2),
        (429, "the server said HTTP 429 Too Many Requests, 2 times", 2),
        (401, "the server said HTTP 401 Unauthorized", 1),
        (redirect, "the server said HTTP 307 Temporary Redirect", 1),
        (slow, "the server did not answer within 0.1 s, 2 times", 2),
        (drops, "the server did not answer within 0.1 s, 2 times", 2),
        (lambda handler: handler.raw(b"<html>"), "what the server sent is no JSON", 1),
        (lambda handler: handler.raw(b'{"choices": []}'), "has no message of a model", 1),
        (lambda handler: handler.raw(b"[" + b"1," * 2**20), "more than 1048576 bytes", 1),
        (lambda handler: handler.connection.close(), "the server cannot be reached", 2),
    ],
)
def test_29_whatever_goes_wrong_the_users_instruction_is_used(server, answer, why, tries) -> None:
    refiner = server.refiner(answer, options="model=m&timeout=0.1&retries=1")
    if not callable(answer) or answer not in (slow, drops):
        refiner.provider.timeout = 5.0
    began = time.perf_counter()
    found = refiner.refine(CAT, "make it snow")
    assert time.perf_counter() - began < 30
    assert (found.refined, found.instruction, found.description) == (False, "make it snow", "")
    assert why in found.reason
    until = time.monotonic() + 30
    while len(server.asked) < tries and time.monotonic() < until:  # it may read later than it is waited for
        time.sleep(0.01)
    assert len(server.asked) == tries
    assert found.as_json()["reason"] == found.reason


def test_a_server_that_recovers_and_one_that_names_its_model(server) -> None:
    refiner = server.refiner(503, [{"type": "text", "text": LINES}], options="timeout=5")
    found = refiner.refine(CAT, "winter")
    assert (found.refined, found.form) == (True, "lines")
    assert [body["model"] for _, _, body in server.asked] == ["the-first"] * 2
    assert refiner.describe()["model"] == "the-first"


def test_nobody_is_there() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as free:
        port = free.server_port
    found = Refiner(OpenAI(f"http://127.0.0.1:{port}/v1", "m", 5, 0)).refine(CAT, "snow")
    assert not found.refined
    assert "cannot be reached" in found.reason


def test_names_of_refiners(monkeypatch, tmp_path) -> None:
    assert open_refiner("none") is None
    monkeypatch.setenv("OPENAI_BASE_URL", "http://somewhere:1/v1/")
    assert open_refiner("openai").describe()["provider"] == "openai:http://somewhere:1/v1"
    assert open_refiner("openai?timeout=3").describe()["timeout"] == 3
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert open_refiner("openai").describe()["model"] == "gpt-4o"
    for bad, said in (
        ("gpt", "there is no refiner"), ("local:", "there is no refiner"), ("openai:localhost:80", "no address"),
        ("openai:http://h:99999999", "no address"), ("openai:http://a:b@h/v1", "password"),
        ("openai:http://h?colour=red", "no option 'colour'"), ("openai:http://h?timeout=x", "no number"),
        ("openai:http://h?timeout=0", "timeout is 0"), ("openai:http://h?retries=-1", "retries is -1"),
        (f"local:{tmp_path}", "no folder of a chat model"), (f"local:{tmp_path}?tokens=0", "tokens is 0"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            open_refiner(bad)


def test_a_picture_is_sent_small_and_stays_as_it_is() -> None:
    wide = picture(2048, 16, "RGBA")
    assert urlsplit(as_data_url(wide)).scheme == "data"
    assert wide.size == (2048, 16)


# ---- in the engine


@pytest.mark.slow
def test_29_the_record_says_what_was_used_and_why(server, caplog) -> None:
    request = EditRequest(CAT, "make it snow", steps=1, seed=3, max_pixels=256)
    server.refiner(json.dumps(GOOD), "no\nanswer")
    with Engine.open(tiny("kontext"), device="cpu", refiner=f"openai:{server.url}?model=m&retries=0") as engine:
        assert engine.describe()["refiner"]["provider"] == f"openai:{server.url}"
        worded, plain = engine.edit(request), engine.edit(request)
        left = engine.edit(EditRequest(**(vars(request) | {"refine": False})))
    first, second = worded.record, plain.record
    assert first["refinement"]["refined"] is True
    assert first["request"]["instruction"] == first["refinement"]["instruction"] == "Cover the lawn with snow"
    assert first["request"]["refine"] is False  # so that repeating it asks nobody
    assert second["refinement"]["refined"] is False
    assert "2 lines instead of three" in second["refinement"]["reason"]
    assert second["request"]["instruction"] == "make it snow"
    (notice,) = second["notices"]
    assert "used as it was given" in notice
    assert left.record["refinement"] is None
    assert len(server.asked) == 2
    assert left.pictures[0].tobytes() == plain.pictures[0].tobytes() != worded.pictures[0].tobytes()


def test_a_family_gets_the_form_it_was_trained_with() -> None:
    hidream = named("hidream-e1")
    full, later = SimpleNamespace(variant="full"), SimpleNamespace(variant="1.1")
    wanted = "Editing Instruction: Snow. Target Image Description: A cat."
    assert hidream.worded(full, "Snow", "A cat.") == wanted
    assert hidream.worded(full, "Snow", "") == hidream.worded(later, "Snow", "A cat.") == "Snow"
    assert named("ip2p").worded(None, "Snow", "A cat.") == "Snow"


def test_an_instruction_with_a_description_is_asked_about_no_more(server) -> None:
    given = "Editing Instruction: snow. Target Image Description: a cat in snow"
    found = server.refiner(json.dumps(GOOD)).refine(CAT, given)
    assert (found.instruction, found.refined, server.asked) == (given, False, [])
    assert "description" in found.reason


# ---- a model in a folder


def chat_model(folder: Path, answer: str) -> Path:
    """A chat model that gives one answer: all other words are suppressed, and no word may come twice."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {"<unk>": 0, "</s>": 1, answer: 2, "the": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="</s>")
    fast.chat_template = "{% for each in messages %}{{ each['role'] }} : {{ each['content'] }} {% endfor %}"
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=1024, eos_token_id=1, bos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        suppress_tokens=[0, 3], begin_suppress_tokens=[1], no_repeat_ngram_size=1, eos_token_id=1, pad_token_id=1
    )
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_chat_model_in_a_folder_words_instructions_without_seeing(tmp_path) -> None:
    refiner = open_refiner(f"local:{chat_model(tmp_path / 'chat', json.dumps(GOOD))}?tokens=8")
    assert refiner.describe()["sees_picture"] is False
    found = refiner.refine(CAT, "winter")
    assert (found.refined, found.instruction, found.form) == (True, "Cover the lawn with snow", "json"), found
    assert found.saw_picture is False
    refiner.close()
    assert refiner.refine(CAT, "winter").reason == "the model was given back"


def test_a_model_in_a_folder_that_babbles_or_fails(tmp_path, monkeypatch) -> None:
    refiner = open_refiner(f"local:{chat_model(tmp_path / 'chat', 'snow')}?tokens=2")
    found = refiner.refine(CAT, "winter")
    assert (found.refined, found.instruction) == (False, "winter")
    assert "1 line instead of three" in found.reason
    assert found.answer == "snow"

    def fails(**arguments):
        raise MemoryError("no more")

    monkeypatch.setattr(refiner.provider._model, "generate", fails)
    assert refiner.refine(CAT, "winter").reason == "the model failed: MemoryError: no more"
    (tmp_path / "chat" / "chat_template.jinja").unlink()
    with pytest.raises(UsageError, match="no chat template") as caught:
        open_refiner(f"local:{tmp_path / 'chat'}")
    assert caught.value.do == "give a model that was tuned to chat"
