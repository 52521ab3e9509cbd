"""The server of the page and a tab of a browser, for the tests of the page. Not a test.

Used by tests/images/test_images_page.py and test_images_soak.py; the server is images_page_server.py.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

from toprope.images.web.sessions import new_session

HELPERS = Path(__file__).resolve().parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LONG = 240.0
"""Seconds that things may take on a machine that is busy with other tests."""
STEPS = 6


@contextmanager
def chromium():
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


class Server:
    """`toprope ui` over a tiny model on the second of two simulated cards, in a process of its own.

    Args:
        folder: of everything that it writes; results are in `folder / "out"`.
        words: a refiner, or none.
        port: 0 for any that is free.
    """

    def __init__(self, folder, words="none", port=0):
        self.folder, self.log = folder, folder / "log"
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        # A proxy that nobody can reach: any request to the outside would fail.
        kept |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
        kept |= {"TOPROPE_SIM": "910B3x2,hbm=1GiB", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
        (folder / "tmp").mkdir(exist_ok=True)
        command = [sys.executable, str(HELPERS / "images_page_server.py"), str(folder)]
        command += ["--port", str(port), "--device", "npu:1", "--out-dir", str(folder / "out"), "--max-upload", "1MiB"]
        command += ["--refiner", words]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, env=kept, stdout=log, stderr=log)
        try:
            self.url = self.said(r"http://\S+")
        except BaseException:
            self.end()
            raise

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def said(self, pattern):
        """Wait for text that the server writes, and return it."""
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            found = re.search(pattern, self.log.read_text())
            if found:
                return found[0].rstrip("/")
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def load(self):
        (self.folder / "go").touch()

    @contextmanager
    def held(self):
        """No edit goes on after a step, unless it is cancelled."""
        (self.folder / "hold").touch()
        try:
            yield
        finally:
            (self.folder / "hold").unlink()

    def device(self):
        answer = httpx.post(f"{self.url}/gradio_api/run/device", json={"data": []}, timeout=LONG)
        return answer.json()["data"][0]

    def upload(self, path):
        with open(path, "rb") as file:
            return httpx.post(f"{self.url}/gradio_api/upload", files={"files": (path.name, file)}, timeout=LONG)

    def ask(self, name, *data):
        answer = httpx.post(f"{self.url}/gradio_api/run/{name}", json={"data": data}, timeout=LONG)
        return answer.json()["data"]

    def edit(self, path, *, steps, seed, loras=()):
        """Everything that the server sends while it edits a picture."""
        session = new_session()
        image = {"path": self.upload(path).json()[0], "meta": {"_type": "gradio.FileData"}}
        form = ["make it snow", False, str(seed), steps, 7.5, 1.5, 0, "", False, 1, "model", "stretch"]
        form += [list(loras), 1, 1, 1, 1, None, "", 0, 0, 100, 100]
        told = [self.ask("bring", session, image), self.ask("edit", session, None, *form)]
        called = httpx.post(f"{self.url}/gradio_api/call/follow", json={"data": [session]}, timeout=LONG).json()
        with httpx.stream("GET", f"{self.url}/gradio_api/call/follow/{called['event_id']}", timeout=LONG) as lines:
            for line in lines.iter_lines():
                if line.startswith("data: ") and line != "data: null":
                    told.append(json.loads(line[6:]))
        return told


class Tab:
    """A tab of the browser, and what it asked for elsewhere."""

    def __init__(self, browser, server, locale="en-US"):
        size = {"width": 1280, "height": 860}
        self.context = browser.new_context(viewport=size, accept_downloads=True, locale=locale)
        self.page = self.context.new_page()
        self.page.set_default_timeout(LONG * 1000)
        self.elsewhere, self.errors = [], []
        self.page.on("request", lambda asked: self.elsewhere.append(asked.url) if self._far(asked.url) else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.url = server.url
        self.page.goto(server.url)

    @classmethod
    def loaded(cls, browser, server, locale="en-US"):
        """A tab of a page whose model is loaded."""
        server.load()
        tab = cls(browser, server, locale)
        tab.wait("#steps input[type=number]")
        return tab

    def _far(self, url):
        return not url.startswith((self.url, "data:", "blob:"))

    def fill(self, path, *, steps=STEPS, instruction="make it snow", seed="5"):
        self.bring(path)
        self.form(steps=steps, instruction=instruction, seed=seed)

    def bring(self, path):
        """Drop a picture, and see it in the large view."""
        before = self.steps()
        where = "#picture" if self.page.is_visible("#picture") else "#view"
        self.page.locator(f"{where} input[type=file]").first.set_input_files(str(path))
        self.page.wait_for_function(f"document.querySelectorAll('#gallery img').length > {before}")
        self.wait("#source img")

    def steps(self):
        """Number of steps that the tree shows."""
        return self.page.locator("#gallery img").count()

    def file_after(self, before):
        """The address of the picture that is shown, once it is another one."""
        changed = "before => { const t = document.querySelector('#files a')?.href; return t && t !== before && t }"
        return self.page.wait_for_function(changed, arg=before).json_value()

    def grows(self, before):
        """The tree has one step more."""
        self.page.wait_for_function(f"document.querySelectorAll('#gallery img').length === {before + 1}")

    def facts(self):
        """Unfold the facts about the device."""
        if not self.page.is_visible("#panel"):
            self.page.click("#facts > button")

    def ready(self, server, path):
        """The model is there, and so is a picture: also where this test is the first of its process."""
        server.load()
        self.wait("#steps input[type=number]")
        self.tab("Picture")
        if not self.steps():
            self.bring(path)

    def paint(self, *points):
        """Draw a line with the mouse over the picture of the mask; points are parts of its width and height."""
        self.page.wait_for_function("document.querySelector('#painter canvas')?.width > 0")
        canvas = self.page.locator("#painter canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
        self.page.mouse.move(*places[0])
        self.page.mouse.down()
        for place in places[1:]:
            self.page.mouse.move(*place, steps=6)
        self.page.mouse.up()
        self.settle()

    def saved(self, path):
        """The picture of the step that is shown, downloaded."""
        with self.page.expect_download() as found:
            self.page.locator("#files a").first.click()
        found.value.save_as(path)
        return path

    def settle(self):
        """Let the page take in what was typed: a click in the same moment sent the number before it."""
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.page.wait_for_timeout(200)

    def form(self, *, steps=STEPS, instruction="make it snow", seed="5"):
        self.page.fill("#instruction textarea", instruction)
        self.page.fill("#seed :is(input, textarea)", seed)
        self.page.fill("#steps input[type=number]", str(steps))
        self.page.press("#steps input[type=number]", "Tab")
        self.settle()

    def see(self, selector, text):
        self.page.locator(selector, has_text=text).wait_for()

    def wait(self, selector, **options):
        return self.page.wait_for_selector(selector, **options)

    def tab(self, name):
        self.page.get_by_role("tab", name=name).click()
