"""Draw docs/figures/images-*.png: screenshots of `toprope ui` over the demo model, in headless Chromium.

    .venv/bin/python scripts/page_figures.py

Run by hand after a change of the page's looks; needs Chromium and playwright. The selectors are identifiers of
`toprope.images.web.page.app`, as in tests/images/test_images_page.py; docs/images.md shows the pictures by these names.

No test runs it: the pictures are looked at.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from toprope.images.demo import TEST_SEEDS, draw_scene, write

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"


def shoot(page: Page, name: str) -> None:
    """Save what the page shows, in few colours."""
    time.sleep(0.8)  # what moves comes to rest
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        page.screenshot(path=file.name)
        picture = Image.open(file.name).convert("RGB").quantize(128, dither=Image.Dither.NONE)
        picture.save(FIGURES / f"images-{name}.png", optimize=True)


def draw(page: Page, folder: Path) -> None:
    """Go through the page."""
    cat = folder / "house.png"
    draw_scene(TEST_SEEDS[1], edge=320).save(cat)
    draw_scene(TEST_SEEDS[2], edge=320).save(folder / "hill.png")
    (folder / "broken.png").write_bytes(cat.read_bytes()[:200])
    (folder / "go").touch()
    page.wait_for_selector("#steps input[type=number]")
    page.set_input_files("#picture input[type=file]", str(cat))
    page.wait_for_selector("#source img")
    page.fill("#instruction textarea", "make it snow")
    page.click("#dice")
    page.fill("#steps input[type=number]", "60")
    page.press("#steps input[type=number]", "Tab")
    page.click("#edit")
    page.wait_for_function("+document.querySelector('#progress [data-step]')?.dataset.step > 14")
    page.click("#facts > button")
    page.wait_for_function("document.querySelector('#panel').innerText.includes('one runs, step')")
    shoot(page, "running")
    page.wait_for_selector("#progress [data-state=done]")
    page.wait_for_selector("#slider img")
    page.fill("#instruction textarea", "make it night")
    page.click("#again")
    page.wait_for_function("document.querySelectorAll('#gallery img').length === 3")
    page.locator("#gallery button").nth(1).click()
    time.sleep(1.5)
    shoot(page, "page")
    page.fill("#steps input[type=number]", "4")
    page.press("#steps input[type=number]", "Tab")
    page.get_by_role("tab", name="Batch").click()
    files = [str(folder / name) for name in ("house.png", "broken.png", "hill.png")]
    page.set_input_files("#uploads input[type=file]", files)
    page.wait_for_function("document.querySelector('#uploads').innerText.includes('hill')")
    page.click("#edit-all")
    page.wait_for_selector("#progress-all [data-state=done]")
    page.wait_for_selector("#results img")
    shoot(page, "batch")


def main() -> None:
    """Start the server and the browser, and draw."""
    chromium = shutil.which("chromium") or sys.exit("there is no Chromium: apt install chromium")
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name) / "log"
        write(folder / "tiny")
        environment = os.environ | {"TOPROPE_SIM": "910B3,hbm=64MiB", "OMP_NUM_THREADS": "1"}
        with log.open("w") as file:
            command = [sys.executable, str(ROOT / "tests" / "helpers" / "images_page_server.py"), name, *sys.argv[1:]]
            server = subprocess.Popen([*command, "--port", "0"], env=environment, stdout=file, stderr=file)
        while not (found := re.search(r"http://\S+", log.read_text())):
            if server.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.1)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1240, "height": 930})
            page.set_default_timeout(240_000)
            page.goto(found[0])
            draw(page, folder)
            browser.close()
        server.send_signal(signal.SIGINT)
        server.wait()


if __name__ == "__main__":
    main()
