"""Start of a program by `toprope run`: choice of the card, build, child process."""

__all__: list[str] = []
