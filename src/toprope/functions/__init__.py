"""Stateful functions with NPU resources, with the names and the meaning of the yr API.

    from toprope import functions as yr

    @yr.instance
    class Counter:
        def __init__(self):
            self.n = 0

        def add(self, k):
            self.n += k
            return self.n

    yr.init()
    counter = Counter.invoke()
    print(yr.get(counter.add.invoke(3)))
    yr.finalize()

Functions and instances run in processes of this machine, or, by `Config(server_address="ray")`, on Ray. Tests:
tests/functions/test_functions_unavailable.py, tests/base/test_import.py.
"""

from toprope.functions import exports
from toprope.functions.exports import *  # noqa: F403 - a hundred names, listed there

__all__: list[str] = []
__all__ += exports.__all__
