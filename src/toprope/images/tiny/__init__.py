"""Tiny pipelines with random weights, in the folders that real ones come in. Their pictures are noise."""

from toprope.images.tiny.making import TINY, write

__all__ = ["TINY", "write"]
