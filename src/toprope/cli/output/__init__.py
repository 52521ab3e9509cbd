"""Output of `toprope cores` and `toprope doctor`."""

__all__: list[str] = []
