"""Loading a pipeline of diffusers from a folder, never from the network; missing packages are one clear error.

Called by every family, `lora.adapters`, `refining.local` and `tiny`: all that is special about reading files with
diffusers and transformers is here, and nothing about one model. What those two packages raise for a broken folder is
theirs, and becomes one of our errors here. Tests: tests/images/test_images_loading.py,
tests/images/test_images_engine.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.errors import PackageError, TopropeError, WeightsError
from toprope.extras import advice

if TYPE_CHECKING:
    import torch

__all__ = ["from_folder", "need_diffusers", "weights_errors", "without_bars"]


def need_diffusers() -> Any:
    """The module diffusers.

    Raises:
        PackageError: it is not installed, or cannot be imported.
    """
    try:
        import diffusers
        import transformers  # noqa: F401 - diffusers imports without it, and then has no pipelines
    except (ImportError, OSError) as error:  # OSError: a library of it that cannot be loaded
        missing = getattr(error, "name", None) or "diffusers"
        raise PackageError(
            f"editing pictures needs {missing}, which cannot be imported.",
            looked_at=" ".join(str(error).split()),
            do=advice("images"),
        ) from error
    return diffusers


@contextmanager
def weights_errors(folder: Path) -> Iterator[None]:
    """Context that turns errors about files into WeightsError or PackageError with the model's folder."""
    try:
        yield
    except TopropeError:
        raise
    except ImportError as error:
        raise PackageError(
            f"the model in {folder} needs a package that cannot be imported: {error}.",
            looked_at=str(folder),
            do=f"{advice('images')}, and install what the error names",
        ) from error
    except Exception as error:  # OSError, ValueError, SafetensorError, KeyError, ...: whatever a broken folder raises
        from toprope.device import is_out_of_memory

        if is_out_of_memory(error):
            raise
        raise WeightsError(
            f"the model in {folder} cannot be loaded: {' '.join(str(error).split())[:500]}",
            looked_at=f"{type(error).__name__} while reading {folder}",
            do="check that it was downloaded whole",
        ) from error


@contextmanager
def without_bars() -> Iterator[None]:
    """Context in which diffusers and transformers draw no progress bars for files."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    shown = [each for each in (diffusers_logging, transformers_logging) if each.is_progress_bar_enabled()]
    for each in shown:
        each.disable_progress_bar()
    try:
        yield
    finally:
        for each in shown:
            each.enable_progress_bar()


def from_folder(
    kind: str, folder: Path, dtype: torch.dtype, components: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Load a pipeline of diffusers to the host, in evaluation mode, without its progress bar.

    Args:
        kind: name of its class in diffusers.
        folder: a folder with model_index.json.
        dtype: dtype of the weights.
        components: parts to use instead of loading them; the value None leaves a part out.
        options: more arguments for `from_pretrained`.
    """
    cls = getattr(need_diffusers(), kind, None)
    if cls is None:
        raise PackageError(
            f"the installed diffusers has no {kind}.", looked_at=_version("diffusers"), do="pip install -U diffusers"
        )
    with weights_errors(folder), without_bars():
        pipeline = cls.from_pretrained(
            os.fspath(folder), dtype=dtype, local_files_only=True, **dict(components or {}), **options
        )
    pipeline.set_progress_bar_config(disable=True)
    for part in pipeline.components.values():
        if hasattr(part, "eval") and hasattr(part, "parameters"):
            part.eval()
    return pipeline


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} is not installed"
