"""`toprope serve`: a graph of `toprope.flow` as an HTTP service.

Options and finding the graph in a file; the server is `toprope.flow.service`, the users' page docs/serve.md. The
address is bound before the graph is loaded, so that a port in use is an error before a model is read. Tests:
tests/flow/test_serve_http.py.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toprope.cli.group import verb
from toprope.errors import PackageError, ProgramError, UsageError
from toprope.extras import advice

if TYPE_CHECKING:
    from toprope.flow import FlowGraph

__all__ = ["app", "load_graph"]

app = verb()

_TARGET = re.compile(r"(.+?\.py)(?::([A-Za-z_]\w*))?")


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def serve(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:NAME]", show_default=False,
            help="A Python file, and the name in it of a FlowGraph or of a function that makes one. [default: graph]",
        ),
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on. The default is reached from here alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0 for any that is free.")] = 8000,
    max_ongoing_requests: Annotated[
        int, typer.Option(metavar="N", min=1, help="Largest number of unanswered requests; further ones get 429.")
    ] = 128,
    max_body: Annotated[str, typer.Option(metavar="SIZE", help="Largest request body.")] = "32MiB",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="Time limit from a request to its answer.")
    ] = 60.0,
    start_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.001, show_default=False,
            help="Time limit for the start of the stages, such as to read weights. [default: the graph's, 1800]",
        ),
    ] = None,
    shutdown_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time limit of accepted requests after SIGTERM.")
    ] = 30.0,
) -> None:  # fmt: skip
    """Serve a graph over HTTP: POST /predict, with /metrics, /healthz, /readyz and /docs.

    SIGTERM and Ctrl-C let accepted requests be answered. On a simulated card: toprope run toprope serve FILE.py
    More: toprope explain serve.
    """
    from toprope.flow.exceptions import DfException
    from toprope.sizes import parse_size

    body = parse_size(max_body)
    try:
        from toprope.flow.service import Limits, Service, server
    except ImportError as error:
        raise PackageError(
            "a service needs FastAPI and uvicorn, which cannot be imported.", str(error), advice("serve")
        ) from error
    with server.bound(host, port) as sock:  # refused before a model is loaded
        graph = load_graph(target)
        try:
            if start_timeout is not None:
                graph.set_start_timeout(max(1, round(start_timeout * 1000)))
            service = Service(graph, Limits(max_ongoing_requests, body, timeout))
            shown = f"[{host}]" if ":" in host else host
            _say(f"{graph.name} is served at http://{shown}:{sock.getsockname()[1]}  (Ctrl-C stops it)")
            is_clean = server.serve(service, sock, shutdown_seconds=shutdown_timeout)
            failure = service.error
        except DfException as error:
            raise UsageError(f"{target} cannot be served: {error.message}.") from error
        finally:
            graph.close()
    if failure is not None:
        _say(f"the graph cannot go on: {failure}")
        raise typer.Exit(1)
    _say("stopped" if is_clean else "stopped before all requests were answered")
    raise typer.Exit(int(not is_clean))


def load_graph(target: str) -> FlowGraph:
    """Load the graph that a file defines.

    Args:
        target: "FILE.py" or "FILE.py:NAME".

    Raises:
        ProgramError: there is no such file.
        UsageError: the file has no such name, or it is no graph.
        Whatever the file raises.
    """
    import cloudpickle

    from toprope.flow import FlowGraph

    match = _TARGET.fullmatch(target)
    if match is None:
        raise UsageError(f"{target!r} is no Python file.", do="toprope serve FILE.py, or FILE.py:NAME")
    path, name = Path(match[1]), match[2] or "graph"
    if not path.is_file():
        raise ProgramError(f"there is no file {match[1]!r}.", looked_at=os.getcwd(), do="check the path")
    module = _module(path)
    cloudpickle.register_pickle_by_value(module)  # its stages do not find it by its name
    found = getattr(module, name, None)
    if callable(found) and not isinstance(found, FlowGraph):
        found = found()
    if not isinstance(found, FlowGraph):
        graphs = [key for key, value in vars(module).items() if isinstance(value, FlowGraph)]
        raise UsageError(
            f"{name} of {path.name} is no FlowGraph, and no function that makes one."
            if hasattr(module, name)
            else f"{path.name} has no {name}.",
            looked_at=f"graphs in it: {', '.join(graphs) or 'none'}",
            do=f"toprope serve {match[1]}:{graphs[0]}" if graphs else f"make one: {name} = flow.FlowGraph([...])",
        )
    return found


def _module(path: Path) -> object:
    """Import a file as a module; its `__main__` part does not run."""
    import importlib.util

    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _say(text: str) -> None:
    sys.stderr.write(f"toprope: {text}\n")
    sys.stderr.flush()
