"""Rates fitted to a card's own profiles, and a program that compares a card with toprope's tables."""

__all__: list[str] = []
