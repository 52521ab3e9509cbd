"""The page in Gradio: layout, theme, tables, panel."""

__all__: list[str] = []
