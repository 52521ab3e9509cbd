"""Facade module: `PathManager`, checks of paths, and files and folders with restricted permissions, as in torch_npu.

Names, permissions, limits and errors are torch_npu's. Tests: tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings

from .._error_codes import ErrCode, pta_error

__all__ = ["PathManager"]

_ORDINARY = re.compile(r"[./_\-\s~0-9a-zA-Z\u4e00-\u9fa5]+")


class PathManager:
    """Functions on paths. A doubtful path is a UserWarning, one that cannot be used a RuntimeError."""

    MAX_PATH_LENGTH = 4096
    MAX_FILE_NAME_LENGTH = 255
    DATA_FILE_AUTHORITY = 0o640
    DATA_DIR_AUTHORITY = 0o750

    @classmethod
    def check_input_directory_path(cls, path: str) -> None:
        """Check the path of a folder, which need not exist.

        Raises:
            RuntimeError: it is a file.
        """
        cls._check_form(path)
        if os.path.isfile(path):
            raise RuntimeError(f"{path} is a file, not a folder" + pta_error(ErrCode.PARAM))

    @classmethod
    def check_input_file_path(cls, path: str) -> None:
        """Check the path of a file, which need not exist.

        Raises:
            RuntimeError: it is a folder.
        """
        cls._check_form(path)
        if os.path.isdir(path):
            raise RuntimeError(f"{path} is a folder, not a file" + pta_error(ErrCode.PARAM))

    @classmethod
    def check_directory_path_writeable(cls, path: str) -> None:
        """Check that a path exists; warn where it is a link or cannot be written."""
        cls._check_access(path, os.W_OK, "written")

    @classmethod
    def check_directory_path_readable(cls, path: str) -> None:
        """Check that a path exists; warn where it is a link or cannot be read."""
        cls._check_access(path, os.R_OK, "read")

    @classmethod
    def check_path_is_readable(cls, path: str) -> bool:
        """Return True if the path can be read."""
        return os.access(path, os.R_OK)

    @classmethod
    def check_path_is_writeable(cls, path: str) -> bool:
        """Return True if the path can be written."""
        return os.access(path, os.W_OK)

    @classmethod
    def remove_path_safety(cls, path: str) -> None:
        """Remove a folder and all in it; nothing where there is none.

        Raises:
            RuntimeError: it cannot be removed.
        """
        cls._warn_of_link(path)
        if not os.path.exists(path):
            return
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except Exception as error:
            raise RuntimeError(f"Failed to remove path: {path}" + pta_error(ErrCode.SYSCALL)) from error

    @classmethod
    def remove_file_safety(cls, file: str) -> None:
        """Remove a file; nothing where there is none.

        Raises:
            RuntimeError: it cannot be removed.
        """
        cls._warn_of_link(file)
        if not os.path.exists(file):
            return
        try:
            os.remove(file)
        except OSError as error:
            raise RuntimeError(f"Failed to remove file: {file}" + pta_error(ErrCode.SYSCALL)) from error

    @classmethod
    def make_dir_safety(cls, path: str) -> None:
        """Make a folder, and those above it, with permissions 750; nothing where it is there.

        Raises:
            RuntimeError: it cannot be made.
        """
        cls._warn_of_link(path)
        try:
            os.makedirs(path, mode=cls.DATA_DIR_AUTHORITY, exist_ok=True)
        except OSError as error:
            raise RuntimeError(f"Failed to make directory: {path}" + pta_error(ErrCode.SYSCALL)) from error

    @classmethod
    def create_file_safety(cls, path: str) -> None:
        """Make an empty file with permissions 640; nothing where it is there.

        Raises:
            RuntimeError: it cannot be made.
        """
        cls._warn_of_link(path)
        if os.path.exists(path):
            return
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, cls.DATA_FILE_AUTHORITY))
        except OSError as error:
            raise RuntimeError(f"Failed to create file: {path}" + pta_error(ErrCode.SYSCALL)) from error

    @classmethod
    def _check_form(cls, path: str) -> None:
        names = path.split("/")
        if len(path) > cls.MAX_PATH_LENGTH or any(len(name) > cls.MAX_FILE_NAME_LENGTH for name in names):
            warnings.warn(f"The path is longer than allowed: {path}", stacklevel=3)
        cls._warn_of_link(path)
        if not _ORDINARY.fullmatch(path):
            warnings.warn(f"The path has characters that are not allowed: {path}", stacklevel=3)

    @classmethod
    def _check_access(cls, path: str, mode: int, verb: str) -> None:
        if not os.path.exists(path):
            raise RuntimeError(f"The path does not exist: {path}")
        cls._warn_of_link(path)
        if not os.access(path, mode):
            warnings.warn(f"The path cannot be {verb}: {path}", stacklevel=3)

    @classmethod
    def _warn_of_link(cls, path: str) -> None:
        if os.path.islink(path):
            warnings.warn(f"The path is a symbolic link: {path}", stacklevel=4)
