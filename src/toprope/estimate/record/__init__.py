"""The operators that a model would call, recorded on meta tensors: shapes, memory, quantised weights.

`estimate.model` calls it with a model of transformers or diffusers; nothing is computed. Tests:
tests/estimate/test_paper.py, tests/estimate/test_models_on_paper.py.
"""

__all__: list[str] = []
