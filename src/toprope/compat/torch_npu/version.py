"""Facade module `torch_npu.version`: the facade's version, which follows torch's. It is no build of a commit.

Tests: tests/compat/test_torch_npu_facade.py.
"""

from ._facade import version

__all__ = ["git_version"]

__version__ = version()

git_version = "Unknown"
"""As in a build of torch_npu outside a git repository."""
