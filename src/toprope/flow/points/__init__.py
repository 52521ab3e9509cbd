"""Process points: the Python functions, UDF classes, model files and graphs that stages run."""

__all__: list[str] = []
