"""Serve the page and the HTTP API, with limits; nothing is fetched from other servers.

Called by `toprope ui` (`cli.ui`). A request passes, in this order: `http_bodies.RestReader`, `web.access_control`,
`web.language`, and Gradio or the API. The variables and arguments that keep Gradio quiet are Gradio's. Tests:
tests/images/test_images_api.py, tests/images/test_images_page.py, tests/images/test_images_web.py.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import threading
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from toprope.errors import EnvironmentProblem, PackageError, UsageError
from toprope.extras import advice
from toprope.http_bodies import RestReader
from toprope.images.results import versions
from toprope.images.web.access_control import AccessControl, Uploads
from toprope.images.web.controller import Controller
from toprope.images.web.language import LanguageChoice

__all__ = ["Served", "is_local", "quiet_environment", "serve"]


@dataclass(frozen=True)
class Served:
    """A running server, in its own thread.

    Attributes:
        url: address of its page.
        host, port: address that it listens on.
        app: the Gradio application.
        server: the uvicorn server.
        thread: its thread.
    """

    url: str
    host: str
    port: int
    app: Any
    server: Any
    thread: threading.Thread

    def stop(self, seconds: float = 10.0) -> None:
        """Stop the server without waiting for the connections of open pages."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it would report each closed connection
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(seconds)
        self.app.close(verbose=False)


def is_local(host: str) -> bool:
    """True if only programs on this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def quiet_environment(scratch: Path) -> None:
    """Set variables that Gradio and its libraries read at import: no statistics, no hub, one folder, no proxy."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(scratch / "pages")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("DO_NOT_TRACK", "1")
    # Requests from this process to this server must not go to a proxy.
    for name in ("NO_PROXY", "no_proxy"):
        others = [each for each in os.environ.get(name, "").split(",") if each]
        os.environ[name] = ",".join(dict.fromkeys([*others, "127.0.0.1", "localhost", "::1"]))


def serve(
    controller: Controller,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    open_browser: bool = False,
    allow_hosts: Sequence[str] = (),
    language: str | None = None,
) -> Served:
    """Serve the page of a controller and the HTTP API, in their own threads.

    The server is started here and not by Gradio's `launch`, which asks itself over HTTP whether it is up, gives up
    after 3 s on a busy machine, and then recommends a public tunnel.

    Args:
        controller: does the work.
        host: address to listen on; the default can be reached from this machine only.
        port: port to listen on; 0 for any free one.
        open_browser: open the page in the user's browser.
        allow_hosts: host names of the server in addition to addresses and localhost, for instance a proxy's.
        language: language of the page, "en" or "zh"; None for the browser's.

    Raises:
        PackageError: Gradio is not installed.
        UsageError: the address cannot be listened on.
        EnvironmentProblem: the server ended while it was starting.
    """
    quiet_environment(controller.scratch)
    listening = _listen(host, port)  # before Gradio is imported, which takes seconds
    try:
        return _served(controller, listening, host, allow_hosts, open_browser, language)
    except BaseException:
        listening.close()
        raise


def _served(
    controller: Controller,
    listening: socket.socket,
    host: str,
    allow_hosts: Sequence[str],
    open_browser: bool,
    language: str | None,
) -> Served:
    """Start Gradio and the API behind the access control, in a thread of their own."""
    try:
        gradio, fastapi, uvicorn = (import_module(name) for name in ("gradio", "fastapi", "uvicorn"))
        api, theme, page = (import_module(f"toprope.images.web.{name}") for name in ("api", "page.theme", "page.app"))
    except (ImportError, OSError) as error:  # OSError: a library of it that cannot be loaded
        raise PackageError("the page needs Gradio, which cannot be imported.", str(error), advice("ui")) from error
    blocks: Any = page.make_app(controller, language)
    port, limits = int(listening.getsockname()[1]), controller.limits
    # Documentation pages would fetch scripts from elsewhere; the description itself is at /openapi.json.
    app = fastapi.FastAPI(title="toprope ui", version=versions()["toprope"], docs_url=None, redoc_url=None)
    api.add_api(app, controller)
    gradio.mount_gradio_app(
        app, blocks, path="/", server_name=host, server_port=port, footer_links=[], run_history=False, show_error=True,
        max_file_size=limits.upload, ssr_mode=False, pwa=False, mcp_server=False, enable_monitoring=False,
        theme=theme.theme(), css=theme.CSS, i18n=page.translations(language),
    )  # fmt: skip
    two = 2 * limits.files  # a batch that waits leaves room for the next one
    uploads = Uploads(
        lambda: getattr(blocks, "upload_file_set", ()), most=limits.uploads, size=two * limits.upload,
        in_use=controller.images_in_use,
    )  # fmt: skip
    names = {*allow_hosts, *(() if _is_address(host) else (host,))}
    application = AccessControl(
        LanguageChoice(app), names=names, uploads=uploads, one=limits.upload, files=limits.files, edits=limits.waiting
    )
    config = uvicorn.Config(
        RestReader(application), log_level="warning", ws_max_size=2**20, timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), name="toprope-serves", daemon=True)
    thread.start()
    while not server.started:  # however long it takes: it starts, or the thread ends
        if not thread.is_alive():
            raise EnvironmentProblem(
                f"the server on {host}:{port} ended while it was starting.",
                looked_at="what it wrote above",
                do="start it again; if it ends again, report what it wrote",
            )
        time.sleep(0.02)
    blocks.is_running = True  # which its `close` asks
    blocks.app, blocks.server = getattr(blocks, "app", app), None
    shown = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
    if open_browser:
        webbrowser.open(url)
    return Served(url, host, port, blocks, server, thread)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens on an address; port 0 takes a free one.

    Raises:
        UsageError: it cannot be listened on.
    """
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(128)
    except OSError as error:
        found.close()
        raise UsageError(
            f"{host}:{port} cannot be listened on." if port else f"{host} cannot be listened on.",
            looked_at=str(error),
            do="name another --port, or 0 for one that is free" if port else "name another --host",
        ) from error
    return found
