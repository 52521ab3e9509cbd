"""The runtime module in ported code: its import, its copy in the project, the arguments that its functions take."""

__all__: list[str] = []
