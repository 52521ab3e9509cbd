"""HiDream-E1 and E1.1: editing over the transformer of HiDream-I1, for which diffusers has no pipeline.

`family` is the interface to the engine. `layout` finds the files, `checkpoint` reads them; `stages` combines base and
edit weights in one pipeline, `pipeline` runs the steps, `guidance` combines the predictions of a step.

Right is what the scripts of the model's authors do. Tests: tests/images/test_images_authors.py compares with them,
tests/images/test_images_hidream.py has the weights.
"""

from toprope.images.families.hidream.family import HiDreamE1
from toprope.images.families.hidream.layout import Layout, find_layout

__all__ = ["HiDreamE1", "Layout", "find_layout"]
