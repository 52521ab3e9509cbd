"""Every program of examples/torch_npu on the simulated card, by its output."""

from pathlib import Path

import pytest

import forkserver

pytestmark = [pytest.mark.process, pytest.mark.native]

PROGRAMS = sorted((Path(__file__).resolve().parents[2] / "examples" / "torch_npu").glob("*.py"))
# A second or so each: the quick ones in `make test`.
QUICK = ("graph_decoding", "moe_routing")


@pytest.mark.parametrize(
    "program",
    [pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow) for path in PROGRAMS],
)
def test_it_does_what_it_says(program, tmp_path):
    done = forkserver.run(
        [forkserver.sys.executable, "-m", "toprope", "run", "--chip", "910B3", str(program), str(tmp_path)], timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "False" not in done.stdout
    assert "toprope: ran on npu:0, a simulated Ascend 910B3" in done.stderr


def test_none_of_them_knows_toprope():
    assert len(PROGRAMS) == 10
    assert not [path.name for path in PROGRAMS if "toprope" in path.read_text(encoding="utf-8")]
