"""Programs that use toprope's torch_npu on the simulated card, in a process of their own, for tests/compat."""

import json

from cuda_programs import run

HEAD = """
import toprope.compat
toprope.compat.install()
import torch, torch_npu

def refused(kind, text, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert text in str(error), str(error)
        return str(error)
    raise AssertionError(f"{function} did not raise {kind}")
"""

RUN_ALL = """
import json, traceback
failures = {{}}
for name, code in {cases!r}.items():
    try:
        exec(compile(code, name, "exec"), {{**globals()}})
    except BaseException:
        failures[name] = traceback.format_exc()
    else:
        failures[name] = ""
print("outcomes:" + json.dumps(failures))
"""


def on_card(code, **variables):
    """Run a program that may use `refused`; its variables are set, too."""
    return run(code, head=HEAD, **variables)


def outcomes(cases, **variables):
    """Run programs one after the other in one process.

    Args:
        cases: code by name.
        variables: environment variables that are set, too.

    Returns:
        By name the traceback of a program that failed, else an empty text.
    """
    done = on_card(RUN_ALL.format(cases=dict(cases)), **variables)
    return json.loads(done.stdout.rpartition("outcomes:")[2])
