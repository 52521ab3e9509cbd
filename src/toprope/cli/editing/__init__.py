"""The work of `toprope edit`: jobs, execution, console.

Called by `cli.edit`; `cli.ui` uses the texts of `console`.
"""

__all__: list[str] = []
