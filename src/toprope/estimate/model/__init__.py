"""Models on paper: their configurations, workloads and division among cards, and the estimate of a step.

`toprope estimate` (cli/estimate.py) is the user's way in; estimate.py adds everything up. Tests:
tests/estimate/test_paper.py, tests/estimate/test_models_on_paper.py.
"""

__all__: list[str] = []
