"""CUDA-only code becomes code that runs on NPU, CUDA and CPU: found, rewritten, reported. Imports no torch.

Example:
    from toprope import port

    ported = port.port(b"import torch\\nmodel.cuda()\\n")
    print(ported.after.decode(), [finding.rule.code for finding in ported.findings])
"""

# For maintainers: called by `toprope port` (`cli.port`) and by programs. The order of the work: `scan` finds files,
# `engine` ports one (or `notebook`, `files`), `rules` find the places, `conditions` decide what stays, `report` and
# `write` show and store.

from toprope.port.engine import port
from toprope.port.family import Family
from toprope.port.finding import Finding, Ported
from toprope.port.registry import all_rules
from toprope.port.rule import Example, Kind, Rule

__all__ = ["Example", "Family", "Finding", "Kind", "Ported", "Rule", "all_rules", "port"]
