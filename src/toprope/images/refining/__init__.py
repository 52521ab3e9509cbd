"""Refiners: models that reword an instruction before a picture is edited."""

__all__: list[str] = []
