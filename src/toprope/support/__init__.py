"""Data on what the card supports, with a source for each row: dtypes by operator, and cores by operator."""
