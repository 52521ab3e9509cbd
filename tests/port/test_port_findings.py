"""Findings agree with the diff: a place that is called left is found again, one that is called rewritten is not."""

import ast
from collections import Counter

import pytest

from toprope.port.engine import port
from toprope.port.registry import python_rules

RUNTIMES = ("toprope.device.portable", "toprope_portable", "pack.toprope_portable")
EXAMPLES = [
    pytest.param(example.before, id=f"{rule.code}-{number}")
    for rule in python_rules().values()
    for number, example in enumerate(rule.examples)
]


def disagreements(text, **options):
    """Places that are called left and are not there any more, and those that are there and were not named."""
    once = port(text.encode(), **options)
    again = port(once.after, **options)
    rewritten = [each for each in once.findings if each.converted]
    assert bool(rewritten) == once.changed
    left = [each for each in once.findings if not each.converted and not any(holds(each, other) for other in rewritten)]
    known = {
        each.rule.code for each in (*rewritten, *once.findings) if each.rule.code in STAYS or each.rule.code in HOLDS
    }
    codes = (Counter((each.rule.code, each.before) for each in some if each.rule.code not in known)
             for some in (left, again.findings))  # fmt: skip
    before, after = codes
    return before - after, after - before


def holds(one, other):
    """Return whether a finding's place has the other one in it, whose text changes."""
    return (one.line, one.column) <= (other.line, other.column) and (other.end_line, other.end_column) <= (
        one.end_line, one.end_column
    )  # fmt: skip


STAYS = {"TR077", "TR079"}
"""Rewritten and still to be looked at: an import of a package for CUDA that is tried from then on."""
HOLDS = {"TR006a", "TR019", "TR088"}
"""Places that hold others: a method `cuda` of the project, the function in front of a traced program;
a default of an option, which stays as it is and is resolved where the option is read."""


@pytest.mark.parametrize("text", EXAMPLES)
def test_what_is_left_is_found_again_and_nothing_else(text):
    for runtime in RUNTIMES:
        gone, new = disagreements(text, runtime=runtime)
        assert not gone
        assert not new


IMPORTS = [
    "from torch.cuda.amp import custom_bwd, custom_fwd\n",
    "from torch.cuda.amp import autocast, GradScaler\nwith autocast():\n    pass\n",
    "from torch.cuda import synchronize, empty_cache as clear, device_count\n",
    "from torch import cuda, nn\ncuda.synchronize()\n",
    "import torch.cuda as tc\ntc.synchronize()\ntc.empty_cache()\n",
    "from torch import cuda\nif cuda.is_available():\n    x.cuda(*where)\n    cuda.synchronize()\n",
    "from torch.cuda import is_available, synchronize\nif is_available():\n    x.cuda(*where)\nsynchronize()\n",
    "import torch\nfrom torch import cuda, nn\nif cuda.device_count() > 1:\n    m = nn.DataParallel(m)\n",
]


def unbound(text):
    """The names that a program reads although nothing binds them, but for those that no program here binds."""
    nodes = list(ast.walk(ast.parse(text)))
    bound = {each.asname or each.name.partition(".")[0] for each in nodes if isinstance(each, ast.alias)}
    return {each.id for each in nodes if isinstance(each, ast.Name)} - bound - {"x", "m", "where"}


@pytest.mark.parametrize("text", IMPORTS)
@pytest.mark.parametrize("leave", ["", "TR024", "TR026", "TR027", "TR051", "TR054", "TR055", "TR001", "TR102"])
def test_names_of_one_import_are_rewritten_together_or_not_at_all(text, leave):
    options = {"leave": (lambda each: each.rule.code == leave)} if leave else {}
    assert disagreements(text, **options) == (Counter(), Counter())
    done = port(text.encode(), **options).after.decode()
    assert not unbound(done), done


@pytest.mark.parametrize("text", IMPORTS)
def test_a_comment_on_one_use_keeps_the_import_that_it_needs(text):
    lines = text.splitlines()
    for number in range(len(lines)):
        marked = "\n".join(f"{line}  # toprope: ignore" if at == number else line for at, line in enumerate(lines))
        done = port(f"{marked}\n".encode()).after.decode()
        assert not unbound(done), done
