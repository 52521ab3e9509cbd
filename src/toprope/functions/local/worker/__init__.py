"""A worker process: its main loop, its requests to the driver, and the forkserver that it is forked from.

Internal to `functions.local`; `local.reactor` starts it, by `local.forkserver_client`. The driver imports nothing of
it. Tests: tests/functions/test_functions_objects.py, tests/functions/test_functions_instances.py.
"""

__all__: list[str] = []
