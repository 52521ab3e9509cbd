"""Reports of `toprope run`: text, page, trace, core check, failure."""

__all__: list[str] = []
