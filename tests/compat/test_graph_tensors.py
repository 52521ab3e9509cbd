"""Functions print_npugraph_tensor and save_npugraph_tensor of torch_npu: at once, and at each replay of a graph.

Holds src/toprope/compat/torch_npu/operators/graph_tensors.py on the simulated card.
"""

import pytest

from torch_npu_programs import outcomes

pytestmark = [pytest.mark.native, pytest.mark.process]

CASES = {
    "printed at once and at each replay": """
import contextlib, io

def printed(function):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        function()
    return out.getvalue()

x = torch.arange(6.0, device="npu").reshape(2, 3)
text = printed(lambda: torch_npu.print_npugraph_tensor(x, tensor_name="x"))
assert text.startswith("x=tensor([[0., 1., 2.],") and text.endswith("shape=(2, 3), dtype=torch.float32\\n")
assert printed(lambda: torch_npu.print_npugraph_tensor(x.cpu())).startswith("tensor([[0.")
graph = torch.npu.NPUGraph()

def capture():
    with torch.npu.graph(graph):
        torch.ops.npu.print_npugraph_tensor(x * 2, tensor_name="twice")

assert printed(capture) == ""
x.fill_(3)
assert printed(graph.replay).startswith("twice=tensor([[6., 6., 6.],")
x.fill_(4)
assert printed(graph.replay).startswith("twice=tensor([[8., 8., 8.],")
""",
    "saved at once and at each replay": """
import os, tempfile

x, y = torch.ones(2, device="npu"), torch.arange(3, device="npu")
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "a.pt")

    def load(name):
        return torch.load(os.path.join(folder, name), map_location="cpu")

    torch_npu.save_npugraph_tensor(x, save_path=path)
    torch_npu.save_npugraph_tensor([x, y], save_path=path)
    torch_npu.save_npugraph_tensor(x.cpu(), save_path=path)
    torch_npu.save_npugraph_tensor(y, save_path=path, overwrite=True)
    assert sorted(os.listdir(folder)) == ["a_0.pt", "a_device_0.pt", "a_device_0_0.pt", "a_device_0_1.pt"]
    assert load("a_device_0_0.pt").tolist() == [1, 1] and load("a_device_0.pt").tolist() == [0, 1, 2]
    assert [each.tolist() for each in load("a_device_0_1.pt")] == [[1, 1], [0, 1, 2]]
    graphs = [torch.npu.NPUGraph(), torch.npu.NPUGraph()]
    for graph in graphs:
        with torch.npu.graph(graph):
            torch_npu.save_npugraph_tensor(x + 1, save_path=os.path.join(folder, "b"))
    assert not os.path.exists(os.path.join(folder, "b_device_0_0.pt"))
    for value in (1, 5):  # one file for each graph, with what its last replay saw
        x.fill_(value)
        graphs[0].replay()
    graphs[1].replay()
    assert sorted(name for name in os.listdir(folder) if name[0] == "b") == ["b_device_0_0.pt", "b_device_0_1.pt"]
    assert load("b_device_0_0.pt").tolist() == [6, 6]
    os.chdir(folder)
    torch_npu.save_npugraph_tensor(x)
    assert [name for name in os.listdir(folder) if name.startswith("tensor_")][0].endswith("_device_0_0.pt")
    os.chdir("/")
refused(TypeError, "must be Tensor or TensorList", torch_npu.save_npugraph_tensor, 1)
refused(ValueError, "must not be empty", torch_npu.save_npugraph_tensor, [])
refused(ValueError, "on the same device", torch_npu.save_npugraph_tensor, [x, x.cpu()])
refused(ValueError, "file name", torch_npu.save_npugraph_tensor, x, "")
""",
}


@pytest.fixture(scope="module")
def failures():
    return outcomes(CASES)


@pytest.mark.parametrize("name", CASES)
def test_graph_tensors(failures, name) -> None:
    assert failures[name] == ""
