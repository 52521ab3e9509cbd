"""CUDA-only code becomes code that runs on NPU, CUDA and CPU: found, rewritten, reported. Imports no torch.

Example:
    from toprope import port

    ported = port.port(b"import torch\\nmodel.cuda()\\n")
    print(ported.after.decode(), [finding.rule.code for finding in ported.findings])
"""

from toprope.port.engine import port
from toprope.port.family import Family
from toprope.port.finding import Finding, Ported
from toprope.port.registry import all_rules
from toprope.port.rule import Example, Kind, Rule

__all__ = ["Example", "Family", "Finding", "Kind", "Ported", "Rule", "all_rules", "port"]
