"""The work of `toprope edit`: jobs, execution, console.

Called by `cli.edit`; `cli.ui` uses the texts of `console`. Tests: tests/images/test_images_cli.py.
"""

__all__: list[str] = []
