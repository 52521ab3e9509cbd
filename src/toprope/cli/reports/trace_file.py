"""The file of `toprope run --trace`: tried before the program starts, written when it has ended.

Called by `cli.run`. The form of the file is decided in `sim.tracing`. An older trace of that name stays whole until the
new one is. Tests: tests/cli/test_run_trace.py, tests/cli/test_wrong_use.py.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from toprope.cli.launch.select_target import Choice
from toprope.errors import UsageError
from toprope.messages import Message, local
from toprope.sim.tracing.tracer import write_run
from toprope.whole_file import check_named, writing_named

__all__ = ["TraceFile", "check", "failure", "try_file", "write"]


@dataclass(frozen=True)
class TraceFile:
    """The outcome for the trace of a run.

    Attributes:
        path: the file, as the user named it.
        records: acts that it holds.
        lost: acts that the traces of the processes no longer held, the oldest ones.
        processes: processes that kept a trace.
        error: why it could not be written; empty when it was.
    """

    path: str
    records: int = 0
    lost: int = 0
    processes: int = 0
    error: str = ""


def check(path: Path, choice: Choice) -> None:
    """Makes sure, before the program starts, that there will be a trace. What is in the file stays in it until then.

    Raises:
        UsageError: the file cannot be written, or the program gets no simulated card.
    """
    if choice.spec is None:
        raise UsageError(
            f"--trace {path} records the simulated card, and this program gets none.",
            "it gets " + ("a real card" if choice.device == "npu" else f"--device {choice.device}"),
            "add --device sim, or leave out --trace",
        )
    try_file(path)


def try_file(path: Path) -> None:
    """Makes sure, before the program starts, that its trace can be written.

    Raises:
        UsageError: it cannot.
    """
    try:
        check_named(path)
    except OSError as error:
        raise UsageError(
            f"the trace cannot be written to {path}: {error.strerror}.", do="name a file in a folder that is yours"
        ) from None


def failure(path: str | Path, error: str) -> str:
    """The line that says that a trace is not there."""
    return local(Message("toprope: the trace could not be written to {path}: {error}", path=path, error=error)) + "\n"


def write(path: Path, folder: Path) -> TraceFile:
    """Writes what all processes of a run recorded in its folder. Where that fails, an older trace stays as it was."""
    try:
        with writing_named(path) as file, io.TextIOWrapper(file, encoding="utf-8") as stream:
            written = write_run(folder, stream)
    except OSError as error:
        return TraceFile(str(path), error=error.strerror or type(error).__name__)
    return TraceFile(str(path), written.records, written.lost, written.processes)
