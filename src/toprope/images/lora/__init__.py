"""LoRAs: their files, and their use on a model.

`files` reads and compares, `adapters` changes the model.
"""

__all__: list[str] = []
