"""The runtime module in ported code: its import, its copy in the project, the arguments that its functions take.

The runtime itself is `toprope.device.portable`, and `device/_portable_runtime.py` is the file that is copied. Tests:
tests/port/test_port_options.py.
"""

__all__: list[str] = []
