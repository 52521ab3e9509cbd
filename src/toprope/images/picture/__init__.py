"""Pictures: opened as sRGB, framed for a model, masked, and saved whole.

Used by `images.resolve` (in), `images.engine` (to the model and back) and `images.runs.output` (out). Tests:
tests/images/test_images_pictures.py.
"""

__all__: list[str] = []
