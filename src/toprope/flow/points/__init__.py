"""Process points: the Python functions, UDF classes, model files and graphs that stages run."""
