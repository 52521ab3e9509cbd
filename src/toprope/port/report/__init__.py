"""Output of a port: summary, HTML, SARIF, the baseline, and the places that a CUDA trace has seen."""

__all__: list[str] = []
