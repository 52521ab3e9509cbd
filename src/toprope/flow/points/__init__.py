"""Process points: the Python functions, UDF classes, model files and graphs that stages run.

What users give to a graph. Each describes its stage as data (`stage.spec`), from which `flow.worker` makes the object.
"""

__all__: list[str] = []
