"""The work of `toprope edit`: jobs, execution, console."""

__all__: list[str] = []
