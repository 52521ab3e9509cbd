"""Folder of a profile of `torch_npu.profiler`: where it is made, and its name.

Used by profiler.py and profiler_interface.py. The name has torch_npu's form, by which the vendor's tools find it.
Tests: tests/compat/test_torch_npu_profiler.py.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from datetime import datetime
from pathlib import Path

from ._messages import warn

__all__ = ["FOLDER", "remove"]

_LONGEST = 226
"""Characters that the name of a worker has at most, less one."""

_EXPORT_ONLY = "export_only_prof_dir"


class _Folder:
    """The place of this process's profiles: the last handler that was made decides, as with the real profiler."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._worker = ""
        self._export_only = False

    def choose(self, worker: object = None, folder: object = None, *, export_only: bool = False) -> None:
        """Set the place.

        Args:
            worker: begin of the folders' names; None for the name of the machine.
            folder: where the folders are made; None for ASCEND_WORK_PATH, else the current folder.
            export_only: whether they are removed with the profiler, unless ASCEND_WORK_PATH is set.

        Raises:
            NotADirectoryError: there is a file at `folder`.
        """
        self._export_only = export_only
        self._worker, self._folder = "", None
        if isinstance(worker, str) and 0 < len(worker) < _LONGEST:
            self._worker = worker
        elif worker is not None:
            warn(f"worker_name is {worker!r}; the machine's name is taken.")
        if isinstance(folder, str) and folder:
            path = Path(folder).expanduser().resolve()
            if path.is_file():
                raise NotADirectoryError(f"{path} is a file, and no folder")
            self._folder = path
        elif folder is not None:
            warn(f"dir_name is {folder!r}; the current folder is taken.")

    def make(self) -> tuple[Path, bool]:
        """Make the folder of a profile.

        Returns:
            the folder, and whether it is removed with the profiler.

        Raises:
            OSError: it cannot be made.
        """
        work = os.environ.get("ASCEND_WORK_PATH")
        only = self._export_only and self._folder is None and not work
        if self._folder is not None:
            parent = self._folder
        elif work:
            parent = Path(work).absolute() / "profiling_data"
        else:
            parent = Path.cwd() / _EXPORT_ONLY if only else Path.cwd()
        parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        while True:
            moment = datetime.now().strftime("%Y%m%d%H%M%S%f")[:-3]
            path = parent / f"{self._worker or socket.gethostname()}_{os.getpid()}_{moment}_ascend_pt"
            try:
                path.mkdir(mode=0o750)
            except FileExistsError:
                time.sleep(0.001)  # the name of the last profile, which is less than a millisecond old
            else:
                return path, only


def remove(path: Path) -> None:
    """Remove the folder of a profile, and the folder around it where that was made for such profiles alone."""
    shutil.rmtree(path, ignore_errors=True)
    if path.parent.name == _EXPORT_ONLY:
        try:
            path.parent.rmdir()
        except OSError:
            pass  # another profile is in it


FOLDER = _Folder()
