"""A tiny trained model that follows three instructions, in the folder of a real one, for trying and for demos.

`toprope images demo` writes it. The weights are in `model/`, made by scripts/train_demo.py from the pictures of
`scenes`. Tests: tests/images/test_images_demo.py.
"""

from toprope.images.demo.copying import write
from toprope.images.demo.scenes import EDITS, TEST_SEEDS, draw_scene

__all__ = ["EDITS", "TEST_SEEDS", "draw_scene", "write"]
