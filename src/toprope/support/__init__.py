"""What the card supports, as data with a source for each row: dtypes by operator, and cores by operator."""
