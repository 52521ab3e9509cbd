"""Rates fitted to a card's own profiles, and a program that compares a card with the documents."""

__all__: list[str] = []
