"""Surroundings for openYuanrong's tests: a deployment that was started, and a `ps` that knows its workers.

Called by `__main__` for the suites of that repository. The tests kill "fnruntime" by the output of `ps -ef`; `_PS`
finds the workers of their own program by the name of toprope's forkserver module, which has to follow when that moves.

No test runs it: `python scripts/vendor_tests VENDOR --suite yuanrong` does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["started"]

# Tests kill the runtimes of their machine: "ps -ef | grep fnruntime | ... | xargs kill -9". Here these are the workers
# of the test's own program, and of no other.
_PS = f"""#!{sys.executable}
import os
from pathlib import Path

def parent(pid):
    return int(Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[1])

def children(pid):
    return [int(each) for each in Path(f"/proc/{{pid}}/task/{{pid}}/children").read_text().split()]

pid = os.getppid()
while pid > 1:
    for each in children(pid):
        if b"toprope.functions.local.worker.forkserver" in Path(f"/proc/{{each}}/cmdline").read_bytes():
            for worker in children(each):
                print("user", worker, each, "fnruntime")
            raise SystemExit
    pid = parent(pid)
"""


@contextlib.contextmanager
def started(options: Sequence[str]) -> Iterator[dict[str, str]]:
    """The variables of programs that follow `toprope start`; nothing is started without options.

    Args:
        options: of `toprope start`.
    """
    tools = os.path.dirname(sys.executable)
    if not options:
        yield {"PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"}
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        (folder / "bin" / "ps").write_text(_PS, encoding="utf-8")
        (folder / "bin" / "ps").chmod(0o755)
        path = os.pathsep.join([str(folder / "bin"), tools, os.environ.get("PATH", "")])
        variables = {"XDG_RUNTIME_DIR": name, "GLOG_log_dir": name, "PATH": path}
        command = [sys.executable, "-m", "toprope"]
        environment = {**os.environ, **variables}
        subprocess.run([*command, "start", *options], check=True, env=environment, stdout=subprocess.DEVNULL)
        try:
            yield variables
        finally:
            subprocess.run([*command, "stop"], check=False, env=environment, stdout=subprocess.DEVNULL)
