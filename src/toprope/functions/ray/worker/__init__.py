"""Code that runs in the worker processes of Ray: actors, tasks, and the API inside of them.

Internal to `functions.ray`: `ray.instances` and `ray.functions` have Ray start it. Tests:
tests/functions/test_functions_ray_parts.py, and (slow) tests/functions/test_functions_ray.py.
"""

__all__: list[str] = []
