"""The page of `toprope ui` over a tiny model on the second of two simulated cards, by HTTP and in headless Chromium.

One server and one browser for all of it. Where there is no Chromium, only what goes over HTTP is tested. Holds
`images.web.page.app` and `images.web.serving`; the decisions behind the page are tested in test_images_web.py.
"""

import json
import os
import re
import signal
import socket
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest
from PIL import Image, ImageChops

from images_page import CHROMIUM, LONG, STEPS, Server, Tab, chromium
from images_profiles import P3, profile
from images_tiny import picture
from toprope.images.picture.files import open_picture
from toprope.images.runs.output import SOURCES

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.browser]

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium for the browser tests (Debian: apt install chromium)"
)


REFINED = "Cover the roof and the meadow with fresh snow"


class Words(BaseHTTPRequestHandler):
    """A server that rewords every instruction in the same way."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        said = json.dumps({"caption": "a house", "instruction": REFINED, "description": "a house in snow"})
        body = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def words():
    with ThreadingHTTPServer(("127.0.0.1", 0), Words) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"openai:http://127.0.0.1:{server.server_port}/v1?model=words&timeout=30&retries=0"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory, words):
    made = Server(tmp_path_factory.mktemp("page"), words)
    yield made
    made.end()


@pytest.fixture(scope="module")
def browser(server):
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    picture(64, 48).save(folder / "cat.png")
    picture(48, 48, shift=90).save(folder / "dog.png")
    (folder / "broken.png").write_bytes((folder / "cat.png").read_bytes()[:90])
    (folder / "large.png").write_bytes(os.urandom(3 * 2**20))
    return folder


@pytest.fixture(scope="module")
def tab(browser, server):
    made = Tab(browser, server)
    yield made
    made.context.close()


def steps_of(told):
    """The numbers of steps that the parts of an answer tell."""
    return [int(found[1]) for part in told if (found := re.search(r'state="running" data-step="(\d+)"', str(part)))]


def files_of(told):
    """The names and paths of the files that an answer ends with."""
    lists = [part["value"] for part in told[-1] if isinstance(part, dict) and isinstance(part.get("value"), list)]
    return {each["orig_name"]: each["path"] for found in lists for each in found if "orig_name" in each}


@pytest.mark.soak
def test_the_page_is_served_on_this_machine_alone_while_the_model_loads(server):
    port = int(server.url.rpartition(":")[2])
    assert server.url.startswith("http://127.0.0.1:")
    listening = [
        each.laddr.ip
        for each in psutil.Process(server.process.pid).net_connections(kind="inet")
        if each.status == psutil.CONN_LISTEN
    ]
    assert set(listening) == {"127.0.0.1"}
    with pytest.raises(ConnectionRefusedError):  # another address of the same machine
        socket.create_connection(("127.0.0.2", port), timeout=5).close()
    until = time.monotonic() + LONG
    while (found := server.device())["model"]["note"] == "starting" and time.monotonic() < until:
        time.sleep(0.02)
    assert found["model"]["state"] == "loading"
    assert found["model"]["note"] == "waiting for the test"
    assert "device" not in found


@pytest.mark.soak
@needs_browser
def test_the_page_says_that_the_model_loads_and_then_what_it_is(server, tab):
    tab.see("#status", "is loading: waiting for the test")
    assert tab.page.is_visible("#status [data-state=loading]")
    assert not tab.page.is_visible("#steps")
    server.load()
    assert "npu:1 · bfloat16 · simulated card" in tab.wait("#status [data-state=ready]").inner_text()
    tab.wait("#steps input[type=number]")
    assert tab.page.input_value("#steps input[type=number]") == "50"  # the family's default
    assert not tab.page.is_visible("#refine_strength")  # this family has none
    assert tab.page.is_checked("#refine input")


@pytest.mark.soak
def test_progress_events_are_the_steps_and_a_form_gives_the_same_picture(server, pictures):
    server.load()
    server.said("is ready on npu:1")
    before = server.device()
    asked = ((3, []), (7, []), (3, ["snow"]), (3, []))
    told = [server.edit(pictures / "cat.png", steps=steps, seed=4, loras=loras) for steps, loras in asked]
    assert [steps_of(each) for each in told] == [[1, 2, 3], [1, 2, 3, 4, 5, 6, 7], [1, 2, 3], [1, 2, 3]]
    made = [Path(path).read_bytes() for each in told for name, path in files_of(each).items() if name.endswith(".png")]
    assert made[0] == made[3]
    assert len(set(made)) == 3  # more steps and a LoRA give others
    after = server.device()
    assert before["memory"]["peak"] < after["memory"]["peak"] < after["memory"]["total"] == 2**30
    assert after["queue"]["done"] == before["queue"]["done"] + 4
    assert after["attention"] == "fused by the device"
    kept = sorted((server.folder / "out").glob("*.png"))
    assert len(kept) >= 4
    assert httpx.get(f"{server.url}/gradio_api/file={kept[0]}", timeout=LONG).status_code in (403, 404)


@pytest.mark.slow
def test_what_cannot_be_is_one_error_with_a_hint(server, pictures):
    server.load()
    for name, seed, hint in (("broken.png", 1, "check that it opens elsewhere"), ("cat.png", "x", "is not a seed")):
        told = str(server.edit(pictures / name, steps=2, seed=seed))
        assert 'role="alert"' in told.replace("\\", "")
        assert hint in told
        assert "data-step" not in told
    too_large = server.upload(pictures / "large.png")
    assert too_large.status_code == 413


@pytest.mark.slow
@needs_browser
def test_a_picture_is_uploaded_edited_compared_and_found_in_the_tree(server, tab, pictures):
    server.load()
    tab.wait("#steps input[type=number]")
    tab.page.fill("#seed :is(input, textarea)", "")
    tab.page.click("#dice")
    tab.page.wait_for_function("document.querySelector('#seed :is(input, textarea)')?.value > ''")
    assert tab.page.input_value("#seed :is(input, textarea)").isdigit()
    tab.page.fill("#instruction textarea", "make it snow")
    tab.page.click("#edit")
    assert "there is no picture" in tab.wait("#problem [role=alert]").inner_text()
    assert not tab.page.is_visible("#scale-1")
    tab.page.click("#loras input")
    tab.page.get_by_role("option", name="snow").click()
    assert "Scale of snow" in tab.wait("#scale-1").inner_text()
    tab.fill(pictures / "cat.png", seed="18446744073709551615")
    tab.page.click("#edit")
    tab.wait("#progress [data-state=done]")
    tab.wait("#slider img")
    assert tab.page.locator("#slider img").count() == 2
    assert "cat-" in tab.wait("#files").inner_text()
    assert tab.page.input_value("#refined textarea") == REFINED
    assert tab.steps() == 2
    tab.page.click("#made button")
    tab.wait("#parameters table")
    shown = tab.page.inner_text("#parameters")
    assert "18446744073709551615" in shown
    assert REFINED in shown
    assert "make it snow" in shown  # as it was written
    assert f"steps\t{STEPS}" in shown
    assert "snow at 1" in shown
    tab.facts()
    tab.see("#panel", "snow")
    tab.form(instruction="something else", seed="1", steps=2)
    tab.page.click("#reuse")
    tab.page.wait_for_function(f"document.querySelector('#instruction textarea')?.value === '{REFINED}'")
    assert not tab.page.is_checked("#refine input")  # it is worded already
    assert tab.page.input_value("#seed :is(input, textarea)") == "18446744073709551615"
    assert tab.page.input_value("#steps input[type=number]") == str(STEPS)


@pytest.mark.slow
@needs_browser
def test_one_goes_on_from_a_result_and_undo_redo_and_branches_walk_the_tree(server, browser, pictures):
    """A result could not be edited further: it had to be downloaded and dropped again."""
    tab = Tab.loaded(browser, server)
    tab.fill(pictures / "dog.png", steps=2)
    assert not tab.page.is_enabled("#undo")
    shown = [""]
    for words in ("snow", "night"):
        tab.page.fill("#instruction textarea", words)
        tab.page.click("#edit")
        shown.append(tab.file_after(shown[-1]))
    tab.page.click("#undo")
    assert tab.file_after(shown[-1]) == shown[1]
    tab.page.click("#undo")
    tab.wait("#source img")
    assert not tab.page.is_enabled("#undo")
    tab.page.click("#redo")
    tab.wait("#slider img")
    tab.page.fill("#instruction textarea", "rain")
    tab.page.click("#again")  # edits the parent: a branch
    tab.grows(3)
    captions = tab.page.locator("#gallery .caption-label").all_inner_texts()
    assert [caption.partition(" · ")[0] for caption in captions] == ["dog.png", "1. snow", "2. night", "1. rain"]
    rain = tab.file_after(shown[1])  # and it is shown
    tab.page.locator("#gallery button").nth(2).click()
    assert tab.file_after(rain) == shown[2]
    assert tab.errors == []
    tab.context.close()


@pytest.mark.slow
@needs_browser
def test_a_reload_in_the_middle_finds_the_picture_the_form_and_the_running_edit(server, browser, pictures):
    """A reload cancelled the edit and lost the picture, the form and the history."""
    tab = Tab.loaded(browser, server)
    tab.fill(pictures / "cat.png", steps=7, instruction="make it rain", seed="")
    with server.held():
        tab.page.click("#edit")
        tab.wait("#progress [data-state=running][data-step]")
        tab.page.reload()
        tab.wait("#progress [data-state=running][data-step]")
        tab.wait("#source img")
        tab.page.wait_for_function("document.querySelector('#instruction textarea')?.value === 'make it rain'")
        assert tab.page.input_value("#steps input[type=number]") == "7"
        assert tab.page.input_value("#seed :is(input, textarea)") == ""  # it was left to chance
    tab.wait("#progress [data-state=done]")
    tab.wait("#slider img")
    assert tab.steps() == 2
    tab.page.reload()
    tab.wait("#slider img")
    assert tab.page.inner_text("#undo") == "Undo"  # a follower with nothing to tell emptied every part
    assert tab.page.is_enabled("#undo")
    tab.context.close()


@pytest.mark.slow
@needs_browser
def test_a_dropped_result_fills_the_form_and_its_source_gives_the_same_bytes(server, browser, pictures, tmp_path):
    tab = Tab.loaded(browser, server)
    tab.fill(pictures / "dog.png", steps=3, instruction="make it blue", seed="123")
    tab.page.uncheck("#refine input")
    tab.page.click("#edit")
    tab.grows(1)

    def download(name):
        tab.see("#files", "dog-")
        with tab.page.expect_download() as found:
            tab.page.locator("#files a").first.click()
        found.value.save_as(tmp_path / name)
        return (tmp_path / name).read_bytes()

    made = download("first.png")
    tab.form(steps=9, instruction="something else", seed="9")
    tab.bring(tmp_path / "first.png")
    tab.see("#note", "says how it was made")
    tab.page.wait_for_function("document.querySelector('#instruction textarea')?.value === 'make it blue'")
    assert tab.page.input_value("#steps input[type=number]") == "3"
    assert tab.page.input_value("#seed :is(input, textarea)") == "123"
    before = tab.steps()
    tab.page.click("#use-source")
    tab.grows(before)
    tab.page.click("#edit")
    tab.grows(before + 1)
    tab.wait("#slider img")
    with tab.page.expect_download() as found:
        tab.page.locator("#files a").first.click()
    assert Path(found.value.path()).read_bytes() == made
    tab.context.close()


@pytest.mark.slow
@needs_browser
def test_outside_the_rectangle_of_a_mask_the_picture_stays_as_it_is(server, browser, pictures):
    tab = Tab.loaded(browser, server)
    tab.fill(pictures / "cat.png", steps=2)
    tab.page.click("#masking > button")
    tab.page.fill("#box-right input", "50")
    tab.page.press("#box-right input", "Tab")
    tab.settle()
    tab.page.click("#edit")
    tab.file_after("")
    with tab.page.expect_download() as found:
        tab.page.locator("#files a").first.click()
    with Image.open(found.value.path()) as made, Image.open(pictures / "cat.png") as source:
        whole, half = made.convert("RGB"), (32, 0, 64, 48)
        assert whole.crop(half).tobytes() == source.convert("RGB").crop(half).tobytes()
        assert whole.tobytes() != source.convert("RGB").tobytes()
    tab.page.reload()
    tab.wait("#mask img")  # the form of the last edit has its mask
    tab.page.click("#clear-mask")
    tab.page.wait_for_selector("#mask img", state="detached")
    tab.context.close()


@pytest.mark.slow
@needs_browser
def test_a_mask_is_painted_with_the_mouse_and_outside_it_the_picture_stays_as_it_is(server, browser, tmp_path):
    """A mask had to be made in another program."""
    picture(900, 600).save(tmp_path / "wide.png")  # larger than the copy that is painted on
    tab = Tab.loaded(browser, server)
    tab.fill(tmp_path / "wide.png", steps=2)
    tab.page.click("#masking > button")
    uploads = []
    tab.page.on("request", lambda asked: uploads.append(asked.url) if "/upload" in asked.url else None)
    tab.paint((0.1, 0.2), (0.4, 0.2))
    tab.paint((0.7, 0.8), (0.9, 0.8))
    tab.page.click("#painter .erase")
    tab.paint((0.6, 0.8), (1.0, 0.8))
    tab.page.click("#edit")
    first = tab.file_after("")
    made = tab.saved(tmp_path / "first.png")
    with Image.open(made) as result, Image.open(tmp_path / "wide.png") as source:
        changed = ImageChops.difference(result.convert("RGB"), source.convert("RGB")).getbbox()
    left, top, right, bottom = changed
    assert 0 < left <= 90 + 3
    assert 360 - 3 <= right < 450  # what was erased at the other side is the source
    assert 120 - 60 < top < 120 < bottom < 120 + 60
    assert uploads == []  # the strokes go with the form
    tab.page.click("#painter .wipe")
    tab.page.click("#again")
    tab.file_after(first)
    with Image.open(tab.saved(tmp_path / "second.png")) as result, Image.open(tmp_path / "wide.png") as source:
        whole = ImageChops.difference(result.convert("RGB"), source.convert("RGB")).getbbox()
    assert whole == (0, 0, 900, 600)
    assert tab.errors == []
    tab.context.close()


@needs_browser
@pytest.mark.parametrize("seconds", [pytest.param(3, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.soak)])
def test_a_whole_visit_with_a_mask_branches_a_lost_connection_and_the_same_bytes_at_the_end(
    server, browser, tmp_path, seconds
):
    """A visit of issue 26: all parts of the editor after each other, as one person uses them."""
    portrait = picture(90, 150)
    portrait.save(tmp_path / "portrait.png", icc_profile=profile(P3, 2.2, "Display P3"))
    tab = Tab.loaded(browser, server)
    tab.fill(tmp_path / "portrait.png", steps=2, seed="26")
    tab.page.uncheck("#refine input")
    tab.page.click("#masking > button")
    tab.paint((0.05, 0.1), (0.95, 0.1))  # the sky
    tab.page.click("#edit")
    snow = tab.file_after("")
    made = tab.saved(tmp_path / "snow.png").read_bytes()
    tab.see("#progress", "converted from Display P3 to sRGB")
    source = open_picture(tmp_path / "portrait.png").picture
    with Image.open(tmp_path / "snow.png") as result:
        changed = ImageChops.difference(result.convert("RGB"), source).getbbox()
        assert result.info["icc_profile"]
    assert changed[3] < 40  # of 150: what was not painted is the source
    assert portrait.tobytes() != source.tobytes()
    tab.page.click("#painter .wipe")
    tab.page.fill("#instruction textarea", "make it night")
    tab.page.click("#edit")
    tab.grows(2)
    night = tab.file_after(snow)
    tab.page.click("#undo")
    assert tab.file_after(night) == snow
    assert tab.page.locator("#slider img").count() == 2  # before and after
    tab.page.fill("#instruction textarea", "make it rain")
    tab.page.click("#again")
    rain = tab.file_after(snow)
    with server.held():
        tab.page.fill("#instruction textarea", "make it foggy")
        tab.page.click("#edit")
        tab.wait("#progress [data-state=running][data-step]")
        tab.context.set_offline(True)
        tab.page.wait_for_timeout(1000 * seconds)
    until = time.monotonic() + LONG
    while server.device()["queue"]["running"] and time.monotonic() < until:
        time.sleep(0.05)
    tab.context.set_offline(False)
    tab.page.reload()
    tab.wait("#slider img")
    captions = tab.page.locator("#gallery .caption-label").all_inner_texts()
    assert [caption.partition(" · ")[0] for caption in captions] == [
        "portrait.png", "1. make it snow", "2. make it night", "1. make it rain", "2. make it foggy",
    ]  # fmt: skip
    foggy = tab.file_after(rain)
    tab.bring(tmp_path / "snow.png")
    tab.see("#note", "says how it was made")
    tab.wait("#mask img")
    tab.page.wait_for_function("document.querySelector('#instruction textarea')?.value === 'make it snow'")
    assert tab.page.input_value("#seed :is(input, textarea)") == "26"
    assert tab.page.input_value("#steps input[type=number]") == "2"
    tab.page.click("#use-source")
    tab.grows(6)
    tab.page.click("#edit")
    tab.grows(7)
    tab.file_after(foggy)
    assert tab.saved(tmp_path / "again.png").read_bytes() == made
    assert tab.errors == []
    tab.context.close()


@pytest.mark.slow
@needs_browser
def test_an_example_brings_a_picture_and_a_chinese_browser_has_a_chinese_page(server, browser):
    tab = Tab.loaded(browser, server, "zh-CN")
    tab.see("#status", "已就绪")
    tab.page.click("#example-style")
    tab.wait("#source img")
    assert tab.page.input_value("#instruction textarea") == "turn it into a watercolour painting"
    assert tab.page.input_value("#guidance input[type=number]") == "9.4"  # of 7.5
    tab.see("#hint", "引导强度")
    tab.page.click("#preset-draft")
    tab.page.wait_for_function("document.querySelector('#steps input[type=number]')?.value === '20'")
    assert tab.page.input_value("#guidance input[type=number]") == "7.5"
    tab.form(steps=2)
    tab.page.click("#edit")
    tab.see("#progress [data-state=done]", "完成")
    tab.page.click("#masking > button")
    tab.see("#painter", "画笔")
    shown = tab.page.inner_text("body")
    assert "编辑前后对比" in shown
    assert "object Object" not in shown
    assert "__i18n__" not in shown
    tab.context.close()


@pytest.mark.slow
@needs_browser
def test_a_link_chooses_the_language_of_everything_and_new_session_begins_an_empty_tree(server, browser, pictures):
    """A Chinese page was for Chinese browsers alone, its errors were English, and New session was not there."""
    tab = Tab.loaded(browser, server)
    tab.fill(pictures / "cat.png", instruction="")
    tab.page.click("#languages a[lang=zh]")
    tab.see("#status", "已就绪")
    tab.wait("#source img")  # the session is the same
    assert tab.page.inner_text("#edit") == "编辑"
    assert tab.page.get_attribute("html", "lang") == "zh-CN"
    tab.page.click("#masking > button")
    tab.see("#painter", "画笔")
    tab.page.click("#edit")
    alert = tab.wait("#problem [role=alert]").inner_text()
    assert "没有指令。" in alert
    assert "there is no instruction" not in alert
    tab.page.fill("#seed :is(input, textarea)", "x y")
    tab.page.fill("#instruction textarea", "make it snow")
    tab.settle()
    tab.page.click("#edit")
    tab.see("#problem", "'x y' 不是随机种子。")
    tab.page.reload()
    tab.see("#status", "已就绪")
    tab.page.click("#languages a[lang=en]")
    tab.see("#status", "is ready")
    tab.wait("#source img")
    assert tab.page.inner_text("#edit") == "Edit"
    tab.page.click("#fresh")
    tab.page.wait_for_selector("#gallery", state="hidden")
    tab.wait("#picture input[type=file]", state="attached")
    tab.page.reload()
    tab.wait("#steps input[type=number]")
    assert tab.steps() == 0
    assert (tab.errors, tab.elsewhere) == ([], [])
    tab.context.close()


@pytest.mark.slow
@needs_browser
def test_the_painter_shows_the_picture_when_the_mask_is_opened_after_a_reload(server, browser, pictures):
    """It was set before the closed part was drawn, and was lost: nothing could be painted on a canvas of 0 x 0."""
    tab = Tab.loaded(browser, server)
    tab.fill(pictures / "cat.png", steps=2)
    tab.page.reload()
    tab.wait("#source img")
    tab.page.click("#masking > button")
    tab.wait("#painter img[src^=data]")
    tab.page.wait_for_function("document.querySelector('#painter canvas').width === 384")  # larger than 64 x 48
    assert tab.errors == []
    tab.context.close()


@pytest.mark.slow
@needs_browser
def test_a_number_out_of_its_range_is_an_error_of_ours_in_the_language_of_the_page(server, browser, pictures):
    """Gradio refused it: in English, in a corner, with a traceback in the terminal."""
    tab = Tab.loaded(browser, server, locale="zh-CN")
    tab.fill(pictures / "cat.png", steps=2)
    tab.page.click("#masking > button")
    tab.page.fill("#box-left input", "-5")
    tab.settle()
    tab.page.click("#edit")
    tab.see("#problem", "左要小于右")
    assert "left -5" in tab.page.inner_text("#problem")
    assert "gradio.exceptions" not in server.log.read_text()
    tab.context.close()


@pytest.mark.slow
@needs_browser
def test_new_session_leaves_nothing_of_the_old_one_and_there_is_a_way_back(server, browser, pictures):
    """The bar of the old edit and its picture in the painter stayed, and nothing led back to the tree."""
    tab = Tab.loaded(browser, server)
    tab.fill(pictures / "cat.png", steps=2)
    tab.page.click("#masking > button")
    tab.wait("#painter img[src^=data]")
    assert not tab.page.is_visible("#back")
    with server.held():
        tab.page.click("#edit")
        tab.wait("#progress [data-state=running][data-step]")
        tab.page.click("#fresh")
        tab.wait("#picture input[type=file]", state="attached")
        tab.page.wait_for_selector("#painter img[src]", state="detached")
        tab.wait("#progress [data-state=none]", state="attached")
        tab.page.click("#back")
        tab.wait("#progress [data-state=running]")
        tab.wait("#painter img[src^=data]")
    tab.wait("#progress [data-state=done]")
    tab.wait("#slider img")
    assert tab.steps() == 2
    tab.page.click("#back")  # and to the new one again
    tab.page.wait_for_selector("#gallery", state="hidden")
    assert tab.errors == []
    tab.context.close()


@pytest.mark.slow
@needs_browser
def test_a_portrait_is_shown_whole_and_a_phone_has_picture_instruction_edit_and_result_in_this_order(
    server, browser, tmp_path
):
    """The slider cut off the lower third of portraits, and Edit was two screens below the instruction on a phone."""
    server.load()
    picture(60, 100).save(tmp_path / "portrait.png")
    tab = Tab(browser, server)
    tab.wait("#steps input[type=number]")
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.fill(tmp_path / "portrait.png", steps=2)
    tab.page.click("#edit")
    tab.grows(1)
    tab.wait("#slider img")
    for size in ({"width": 390, "height": 844}, {"width": 1280, "height": 860}):
        tab.page.set_viewport_size(size)
        box, shown = (tab.page.locator(each).first.bounding_box() for each in ("#slider", "#slider img"))
        assert shown["y"] >= box["y"] - 1
        assert shown["y"] + shown["height"] <= box["y"] + box["height"] + 1
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tops = [tab.page.locator(each).bounding_box()["y"] for each in ("#slider", "#instruction", "#edit", "#gallery")]
    assert tops == sorted(tops)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.context.close()


@pytest.mark.slow
@needs_browser
def test_cancel_stops_an_edit_and_the_panel_is_live(server, tab, pictures):
    tab.ready(server, pictures / "cat.png")
    tab.form(steps=100)
    tab.facts()
    with server.held():
        tab.page.click("#edit")
        tab.wait("#progress [data-state=running][data-step]")
        tab.see("#panel", "one runs, step")
        told = server.device()["queue"]
        assert told["running"]
        tab.page.click("#cancel")
        stopped = tab.wait("#progress [data-state=cancelled]")
    assert told["step"] <= int(stopped.get_attribute("data-step")) < 100
    assert not server.device()["queue"]["running"]
    tab.see("#panel", "nothing runs")
    assert "cancelled" in tab.page.inner_text("#panel")


@pytest.mark.slow
@needs_browser
def test_a_batch_with_a_corrupt_file_gives_the_others(server, tab, pictures):
    tab.ready(server, pictures / "cat.png")
    tab.form(steps=2)
    tab.tab("Batch")
    names = ("cat.png", "broken.png", "dog.png")
    tab.page.set_input_files("#uploads input[type=file]", [str(pictures / name) for name in names])
    tab.see("#uploads", "dog")
    with server.held():
        tab.page.click("#edit-all")
        tab.wait("#rows tr[data-state=running]")
        states = [row.get_attribute("data-state") for row in tab.page.locator("#rows tr").all()]
        assert states == ["running", "waiting", "waiting"]
        tab.see("#queue tr[data-owner=yours]", "3 pictures")
    tab.wait("#progress-all [data-state=done]")
    states = [row.get_attribute("data-state") for row in tab.page.locator("#rows tr").all()]
    assert states == ["done", "failed", "done"]
    assert "check that it opens elsewhere" in tab.page.inner_text("#rows")
    with tab.page.expect_download() as download:
        tab.page.click("#packed a")
    with zipfile.ZipFile(download.value.path()) as packed:
        assert sorted(Path(name).suffix for name in packed.namelist()) == [".json", ".json", ".png", ".png"]
        records = [json.loads(packed.read(name)) for name in packed.namelist() if name.endswith(".json")]
    assert {record["seed"] for record in records} == {5}


@pytest.mark.slow
@needs_browser
def test_two_clients_are_queued_and_one_that_cancels_frees_its_place(server, browser, tab, pictures):
    tab.ready(server, pictures / "cat.png")
    other = Tab(browser, server)
    other.wait("#steps input[type=number]")
    other.fill(pictures / "dog.png", steps=100)
    with server.held():
        other.page.click("#edit")
        other.wait("#progress [data-state=running]")
        tab.form(steps=3)
        tab.page.click("#edit")
        waits = tab.wait("#progress [data-state=waiting]")
        assert waits.get_attribute("data-ahead") == "1"
        assert "1 edit before this one" in waits.inner_text()
        tab.see("#queue tr[data-owner=of_page][data-state=running]", "another page")
        tab.see("#queue tr[data-owner=yours][data-state=waiting]", "2. waiting")
        other.see("#queue tr[data-owner=yours][data-state=running]", "step")
        queue = server.device()["queue"]
        assert (queue["running"], queue["waiting"]) == (True, 1)
        other.page.click("#cancel")
        tab.wait("#progress [data-state=running]")
        other.context.close()
    tab.wait("#progress [data-state=done]")
    assert server.device()["queue"]["cancelled"] == queue["cancelled"] + 1


@pytest.mark.slow
@needs_browser
def test_pages_fetched_nothing_from_elsewhere_and_ran_without_errors(tab):
    assert tab.elsewhere == []
    assert tab.errors == []


@pytest.mark.slow
def test_ctrl_c_stops_the_server_and_leaves_only_what_was_to_be_kept(server):
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(LONG) == 0
    said = server.log.read_text()
    assert said.count("stopping after the step that runs") == 1
    assert f"stopped; results are in {server.folder / 'out'}" in said
    assert "Traceback" not in said
    kept = [path for path in (server.folder / "out").iterdir() if path.suffix in (".png", ".json")]
    assert {path.name for path in (server.folder / "out").iterdir()} - {path.name for path in kept} == {
        SOURCES, "sessions.sqlite", "sessions.lock",
    }  # fmt: skip
    assert len([path for path in kept if path.suffix == ".json"]) * 2 == len(kept)
    assert list((server.folder / "tmp").glob("toprope-ui-*")) == []
