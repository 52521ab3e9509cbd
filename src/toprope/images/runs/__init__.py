"""Runs of many edits: their jobs, their folder of results, and the cards they are spread over.

Used by `toprope edit` and by the page's controller. Tests: tests/images/test_images_cli.py.
"""

__all__: list[str] = []
