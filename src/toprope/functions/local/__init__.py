"""Functions and instances in processes of this machine: one of the two backends of the yr API.

`yr.init` calls `start`. `session` joins the parts in the driver, `worker` is the other side; rules that Ray shares are
in `functions.lifecycle` and `functions.scheduling`. Tests: tests/functions/test_functions_semantics.py,
tests/functions/test_functions_objects.py, tests/functions/test_functions_instances.py.
"""

from toprope.functions.local.startup import start

__all__ = ["start"]
