"""The page in Gradio: layout, theme, tables, panel.

The only sub-package that imports Gradio, at `web.serving`'s request. What it shows comes from `web.controller`.
Tests: tests/images/test_images_page.py.
"""

__all__: list[str] = []
