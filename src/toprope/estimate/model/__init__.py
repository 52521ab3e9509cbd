"""Models on paper: their configurations, workloads and division among cards, and the estimate of a step."""

__all__: list[str] = []
