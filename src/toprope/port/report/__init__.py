"""Output of a port: summary, HTML, SARIF, the baseline, and the places that a CUDA trace has seen.

Called by `cli.port` with the results of `scan`.
"""

__all__: list[str] = []
