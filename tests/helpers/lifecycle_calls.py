"""Calls and processes of life cycles, as the backends have them."""

from toprope.functions.exceptions import YRequestError, YRRuntimeError

CRASH = YRequestError("the process was killed", 1007)
ASKED = YRRuntimeError("this instance is terminated", 1007)


class Call:
    """A call as backends have it, which notes what becomes of it."""

    def __init__(self, number, tries=0, items=False):
        self.number = number
        self.tries = self.runs_left = tries
        self.cancelled = False
        self.process = None
        self.is_begun = items
        self.runs = 0
        self.ends = []

    def cancel_error(self):
        return YRRuntimeError("cancelled", 3003)

    def __repr__(self):
        return f"call {self.number}"


class Process:
    """A process that works on calls."""

    def __init__(self):
        self.calls = []
        self.last = -1
        self.is_made = False
        self.is_open = True

    @property
    def load(self):
        return len(self.calls)
