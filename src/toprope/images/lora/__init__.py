"""LoRAs: their files, and their use on a model."""

__all__: list[str] = []
