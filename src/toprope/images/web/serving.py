"""Serving the page: on which address, with which limits; nothing is fetched from elsewhere, nobody is told."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from toprope.errors import PackageError, UsageError
from toprope.extras import advice
from toprope.images.web.studio import Studio

__all__ = ["Served", "is_local", "quiet_environment", "serve"]


@dataclass(frozen=True)
class Served:
    """A server that runs.

    Attributes:
        url: of its page.
        host, port: that it listens on.
        app: of Gradio.
    """

    url: str
    host: str
    port: int
    app: Any

    def stop(self) -> None:
        """Answer nobody any more: pages that are open hold connections, which are not waited for."""
        if getattr(self.app, "server", None) is not None:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it would tell of each that is cut
            self.app.server.force_exit = True
        self.app.close(verbose=False)


def is_local(host: str) -> bool:
    """Whether only programs on this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def quiet_environment(scratch: Path) -> None:
    """Set what Gradio and its friends read at import: no statistics, no hub, own files in one folder, no proxy."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(scratch / "pages")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("DO_NOT_TRACK", "1")
    # Gradio asks itself over HTTP whether it is up: a proxy would be asked instead.
    for name in ("NO_PROXY", "no_proxy"):
        others = [each for each in os.environ.get(name, "").split(",") if each]
        os.environ[name] = ",".join(dict.fromkeys([*others, "127.0.0.1", "localhost", "::1"]))


def serve(studio: Studio, *, host: str = "127.0.0.1", port: int = 7860, open_browser: bool = False) -> Served:
    """Serve the page of a studio, in threads of its own.

    Args:
        studio: does the work.
        host: address to listen on; the default is reached from this machine alone.
        port: 0 for any that is free.
        open_browser: open the page in the user's browser.

    Raises:
        PackageError: Gradio is not installed.
        UsageError: the address cannot be listened on.
    """
    quiet_environment(studio.scratch)
    _port(host, port)  # asked before Gradio is imported, which takes seconds
    try:
        app: Any = import_module("toprope.images.web.app").make_app(studio)
    except (ImportError, OSError) as error:  # OSError: a library of it that cannot be loaded
        raise PackageError("the page needs Gradio, which cannot be imported.", str(error), advice("ui")) from error
    look = import_module("toprope.images.web.look")
    for left in (2, 1, 0):
        chosen = _port(host, port)
        try:
            _, url, _ = app.launch(
                server_name=host, server_port=chosen, share=False, inbrowser=open_browser, prevent_thread_lock=True,
                quiet=True, show_error=True, footer_links=[], ssr_mode=False, pwa=False, mcp_server=False,
                enable_monitoring=False, max_file_size=studio.limits.upload,
                theme=look.theme(), css=look.CSS,
            )  # fmt: skip
            break
        except OSError as error:
            if port or not left:  # a port that was free may be taken by now
                raise UsageError(
                    f"{host}:{chosen} cannot be listened on.",
                    str(error),
                    "name another --port, or 0 for one that is free",
                ) from error
    return Served(url, host, chosen, app)


def _port(host: str, port: int) -> int:
    """The port, or one that is free where it is 0.

    Raises:
        UsageError: it cannot be listened on.
    """
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(kind) as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            found.bind((host, port))
            return int(found.getsockname()[1])
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be listened on." if port else f"{host} cannot be listened on.",
            looked_at=str(error),
            do="name another --port, or 0 for one that is free" if port else "name another --host",
        ) from error
