"""LoRAs: their files, and their use on a model.

`files` reads and compares, `adapters` changes the model. Tests: tests/images/test_images_lora.py.
"""

__all__: list[str] = []
