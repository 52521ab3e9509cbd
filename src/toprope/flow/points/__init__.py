"""Process points: the Python functions, UDF classes, model files and graphs that stages run.

What users give to a graph. Each describes its stage as data (`stage.spec`), from which `flow.worker` makes the
object. Tests: tests/flow/test_flow_decorators.py, tests/flow/test_flow_onnx.py.
"""

__all__: list[str] = []
