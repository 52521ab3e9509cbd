"""Output of a port: summary, HTML, SARIF, the baseline, and the places that a CUDA trace has seen.

Called by `cli.port` with the results of `scan`. Tests: tests/port/test_port_options.py,
tests/port/test_port_compared.py.
"""

__all__: list[str] = []
