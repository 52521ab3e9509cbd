"""A worker process: its main loop, its requests to the driver, and the forkserver that it is forked from.

Internal to `functions.local`; `local.reactor` starts it. Only the clients in the driver may be imported there. Tests:
tests/functions/test_functions_faults.py.
"""

__all__: list[str] = []
