"""Data on what the card supports, with a source for each row: dtypes by operator, and cores by operator."""

__all__: list[str] = []
