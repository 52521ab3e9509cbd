"""The page in Gradio: layout, theme, tables, panel.

The only sub-package that imports Gradio, at `web.serving`'s request. What it shows comes from `web.controller`.
"""

__all__: list[str] = []
