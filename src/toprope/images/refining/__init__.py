"""Refiners: models that reword an instruction before a picture is edited.

`images.engine` opens one with `opening.open_refiner`; `openai` and `local` are the two kinds of models behind it.
Tests: tests/images/test_images_refine.py.
"""

__all__: list[str] = []
