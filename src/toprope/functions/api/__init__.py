"""Names of the yr API, by subject; `toprope.functions.exports` lists them all.

What users call. It checks arguments and passes calls to the backend in use (`functions.backend`); nothing runs here.
Tests: tests/functions/test_functions_options.py, tests/functions/test_functions_assertions.py.
"""

__all__: list[str] = []
