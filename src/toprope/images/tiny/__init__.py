"""Tiny pipelines with random weights, in the folders that real ones come in. Their pictures are noise.

Written by `toprope images tiny`, doctor's tiny edit and tests. A file here for each family. Tests:
tests/images/test_images_engine.py, tests/images/test_images_cli.py.
"""

from toprope.images.tiny.making import TINY, write

__all__ = ["TINY", "write"]
