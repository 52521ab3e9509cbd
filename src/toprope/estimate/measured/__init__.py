"""What a card has told: rates fitted to its profiles, and a program that compares it with the documents."""

__all__: list[str] = []
