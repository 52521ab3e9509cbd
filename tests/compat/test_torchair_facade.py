"""Facade torchair: import paths, names, and errors for names that are missing, with and without a simulated card.

Holds src/toprope/compat/torchair.
"""

import pytest

from device_stand_ins import run_anew, told

pytestmark = [pytest.mark.native, pytest.mark.process]

PROGRAM = """
import toprope.compat
toprope.compat.install(simulated_card={card})
import importlib.util, torch, torchair, torchair.scope
import torchair.config.compiler_config as documented
from torchair.configs.compiler_config import CompilerConfig

def caught(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error).splitlines()[0]]
    return ["nothing", ""]

def imported(name):
    return caught(lambda: importlib.import_module(name))
"""

ON_THE_CARD = (
    PROGRAM.format(card=True)
    + """
import torch_npu

def go(x):
    product = torch.mm(x, x)
    with torchair.scope.limit_core_num(6, 12):
        return product, torch.add(x, x)

config = CompilerConfig()
config.mode = "npugraph_ex"
run = torch.compile(go, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True, dynamic=False)
x = torch.randn(3, 3)
product, total = run(x.npu())
with torch_npu.npu.npugraph_ex.scope.limit_core_num(6, 12):
    limit = torch_npu.npu.get_stream_limit(torch_npu.npu.current_stream())
tell(
    torch.allclose(product.cpu(), x @ x, atol=1e-5) and torch.equal(total.cpu(), x + x),
    limit,
    torchair.CompilerConfig is CompilerConfig is documented.CompilerConfig,
    sorted(torchair.scope.__all__),
    torchair.__toprope__,
    caught(lambda: torchair.dynamo_export),
    caught(lambda: torchair.scope.npu_wait_tensor(x, x)),
    caught(lambda: torchair.never),
    hasattr(torchair, "ops") or hasattr(torchair.scope, "deterministic"),
    imported("torchair.ge_concrete_graph"),
    caught(lambda: setattr(config, "speed", 3)),
    caught(lambda: torchair.get_npu_backend(config)),
    importlib.util.find_spec("torchair.nothing") is None,
)
"""
)

WITHOUT = (
    PROGRAM.format(card=False)
    + """
with torchair.scope.limit_core_num(1, 2):
    total = torch.ones(2).sum().item()
tell(total, hasattr(torch, "npu"), caught(torchair.get_npu_backend), caught(lambda: setattr(CompilerConfig(), "x", 1)))
"""
)


@pytest.mark.slow
def test_on_the_simulated_card():
    right, limit, same, scopes, ours, export, wait, never, others, inside, option, positional, nothing = told(
        ON_THE_CARD, by=run_anew, TOPROPE_SIM="910B2", TORCH_DEVICE_BACKEND_AUTOLOAD="1"
    )
    assert right
    assert limit == {"cube_core_num": 6, "vector_core_num": 12}
    assert same
    assert scopes == [
        "data_dump", "limit_core_num", "npu_stream_switch", "npu_wait_tensor", "op_never_timeout", "super_kernel",
    ]  # fmt: skip
    assert ours
    assert export[0] == never[0] == "AttributeError"
    assert "does not have torchair.dynamo_export: the real torchair has it (Ascend/torchair, " in export[1]
    assert wait[0] == "NotImplementedError"
    assert 'in a graph that torch.compile builds in mode "max-autotune"' in wait[1]
    assert "does not have torchair.never: it is not one of the documented names of the real torchair" in never[1]
    assert not others
    assert inside[0] == "ModuleNotFoundError"
    assert inside[1].startswith(
        "No module named 'torchair.ge_concrete_graph': toprope's torchair does not have this API: "
    )
    assert option[0] == "ValueError"
    assert option[1].startswith("CompilerConfig has no option speed, all options ['mode', ")
    assert positional[0] == "TypeError"
    assert nothing


def test_without_a_card():
    total, npu, backend, option = told(WITHOUT)
    assert (total, npu) == (2, False)
    assert backend == ["InstallError", "torchair compiles for a card, and this process has no simulated one."]
    assert option[0] == "ValueError"
