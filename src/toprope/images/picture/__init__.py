"""Pictures: opened as sRGB, framed for a model, masked, and saved whole."""

__all__: list[str] = []
