"""torch's module of graph trees with the card's names: what is renamed, and what is not.

Holds src/toprope/sim/npu/graph_trees/renaming.py.
"""

from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from toprope.sim.npu.graph_trees.renaming import Renaming, renamed

RENAMING = Renaming(
    package="json",
    compiled={"_npu_free"},
    modules={"cuda_things": "textwrap"},
    names={"locks": "npu_locks"},
    texts={"CUDA is old.": "An NPU is new."},
    fewer={"NPUNode": 1},
    foreign=("config",),
)


def compiled(tmp_path: Path, source: str) -> CodeType:
    file = tmp_path / "trees.py"
    file.write_text(source, encoding="utf-8")
    return renamed(file, RENAMING)


def run(tmp_path: Path, source: str, **given: Any) -> dict[str, Any]:
    names = dict(given)
    exec(compiled(tmp_path, source), names)
    return names


def test_names_of_the_module_are_the_cards(tmp_path: Path) -> None:
    names = run(tmp_path, "class CUDANode:\n    def cuda_graph(self, cuda_pool=1): return cuda_pool\nlocks = 'locks'\n")
    assert names["NPUNode"]().npu_graph(npu_pool=3) == 3
    assert names["npu_locks"] == "npu_locks"


def test_texts_are_the_cards_and_keys_are_torchs(tmp_path: Path) -> None:
    setting = "torch._inductor.config.triton.cudagraph_trees"
    source = f"said = ['a CUDAGraph', 'CUDA is old.', 'cudagraphs', 'set {setting} in cuda']\n"
    assert run(tmp_path, source)["said"] == [
        "a NPUGraph",
        "An NPU is new.",
        "cudagraphs",
        f"set {setting} in npu",
    ]


def test_settings_of_torch_keep_their_names(tmp_path: Path) -> None:
    class Config:
        cudagraph_trees = 5

    assert run(tmp_path, "trees = config.cudagraph_trees\n", config=Config)["trees"] == 5


def test_imports_bind_the_cards_names(tmp_path: Path) -> None:
    names = run(tmp_path, "from cuda_things import dedent\nfrom . import loads\n")
    assert (names["dedent"]("  a"), names["loads"]("1")) == ("a", 1)


def test_functions_of_cpp_are_looked_up_in_torch_npu(tmp_path: Path) -> None:
    class Compiled:
        @staticmethod
        def _npu_free() -> int:
            return 4

    class TorchNpu:
        _C = Compiled

    assert run(tmp_path, "freed = torch._C._cuda_free()\n", torch_npu=TorchNpu)["freed"] == 4


def test_an_assertion_that_fails_is_torch_npus_error_on_torchs_line(tmp_path: Path) -> None:
    names = run(tmp_path, "def check(cuda):\n    assert all(\n        cuda)\n    assert cuda == [1], f'no {cuda}'\n")
    names["check"]([1])
    with pytest.raises(RuntimeError, match=r"^check all\( npu\) fail$") as caught:
        names["check"]([0])
    assert (caught.traceback[-1].path.name, caught.traceback[-1].lineno) == ("trees.py", 1)
    with pytest.raises(RuntimeError, match=r"^no \[2\]$"):
        names["check"]([2])


def test_calls_leave_out_arguments_that_the_class_of_the_card_does_not_take(tmp_path: Path) -> None:
    assert run(tmp_path, "node = CUDANode(1, 2)\n", NPUNode=lambda *given: given)["node"] == (1,)


def test_what_depends_on_cuda_being_built_is_the_callers(tmp_path: Path) -> None:
    assert run(tmp_path, "if torch.backends.cuda.is_built():\n    kept = 1\nelse:\n    kept = 2\n", kept=3)["kept"] == 3
