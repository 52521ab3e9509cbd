"""Model folders as groups (`plan.layout`, `store.headers`): families' names, shards, tied heads, damaged files."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from model_folders import FAMILIES, Shapes, write
from toprope.errors import WeightsError
from toprope.tiers.plan.layout import read_layout
from toprope.tiers.store.headers import read_folder

pytestmark = pytest.mark.process


def model(folder: Path, shapes: Shapes, config: Any = None) -> Path:
    names = list(shapes)
    random.Random(0).shuffle(names)  # the order of a file says nothing
    write(folder / "model.safetensors", {name: shapes[name] for name in names})
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_are_groups_in_the_order_of_their_numbers(family: str, tmp_path: Path) -> None:
    shapes, order = FAMILIES[family]
    layout = read_layout(model(tmp_path, shapes))
    first = {"wpe", "wte"} if family == "gpt2" else {"time_text_embed", "x_embedder"}
    found = list(layout.order)
    if first <= set(found):  # which of two embeddings comes first, no name says
        assert set(found[:2]) == first
        found[:2] = order[:2]
    assert found == order
    assert sorted(each.name for group in layout.groups for each in group.members) == sorted(shapes)
    assert layout.bytes == sum(each.bytes for each in layout.tensors.values())
    assert layout.dtypes == {"BF16": layout.bytes}
    assert layout.said.startswith("order and groups from the names of layers (")
    kinds = {each.name: each.kind for group in layout.groups for each in group.members}
    assert all((kind == "norm") == ("norm" in name or "ln_f" in name) for name, kind in kinds.items())
    assert sum(each.compute_seconds for each in layout.computing(3.0)) == pytest.approx(3.0)


def test_a_tied_head_counts_once(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    shapes, _ = FAMILIES["llama"]
    both = read_layout(model(tmp_path, shapes, config))
    assert both.groups[-1].members[0].key == "model.embed_tokens.weight"
    assert both.said.endswith("; lm_head.weight = model.embed_tokens.weight counted once")
    del (less := dict(shapes))["lm_head.weight"]
    one = read_layout(model(tmp_path, less, config))
    assert one.bytes == both.bytes == sum(each.bytes for each in one.tensors.values())
    assert one.order == both.order
    untied = read_layout(model(tmp_path, shapes, config | {"tie_word_embeddings": False}))
    assert untied.bytes == both.bytes + 16 * 8 * 2


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    shapes, order = FAMILIES["llama"]
    names = list(shapes)
    parts = {"model-1.safetensors": names[:7], "model-2.safetensors": names[7:]}
    for file, some in parts.items():
        write(tmp_path / file, {name: shapes[name] for name in some})
    write(tmp_path / "consolidated.safetensors", shapes)  # another copy, which the index does not name
    index = {"weight_map": {name: file for file, some in parts.items() for name in some}}
    place = tmp_path / "model.safetensors.index.json"
    place.write_text(json.dumps(index))
    assert list(read_layout(tmp_path).order) == order
    for each in read_folder(tmp_path):
        assert each.begin + each.bytes <= each.file.stat().st_size
    index["weight_map"]["other"] = "model-1.safetensors"
    place.write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="1 tensors of the index are not in their files"):
        read_layout(tmp_path)
    place.unlink()
    with pytest.raises(WeightsError, match="is in two files"):
        read_layout(tmp_path)


def test_files_are_as_safetensors_writes_them(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {"b": torch.arange(6).reshape(2, 3), "a": torch.tensor(1.5), "c": torch.empty(0, 4, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = {each.name: each for each in read_folder(tmp_path)}
    assert {name: each.shape for name, each in found.items()} == {n: tuple(t.shape) for n, t in tensors.items()}
    data = (tmp_path / "model.safetensors").read_bytes()
    for name, tensor in tensors.items():
        each = found[name]
        assert each.bytes == tensor.numel() * tensor.element_size()
        assert data[each.begin : each.begin + each.bytes] == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_damaged_files_are_one_error(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    write(file, {"a": (4, 4), "b": (2,)})
    whole = file.read_bytes()
    damaged, pointer = r"is no safetensors file, or is damaged", b"version https://git-lfs.github.com/spec/v1\n"
    for data in (whole[:-1], whole + b"x", whole[:20], b"", pointer):
        file.write_bytes(data)
        with pytest.raises(WeightsError, match="is a pointer of Git LFS" if data == pointer else damaged) as error:
            read_layout(tmp_path)
        assert error.value.do
    rng = random.Random(1)
    for _ in range(200):  # nothing but this error, whatever the bytes
        data = bytearray(whole)
        data[rng.randrange(8, len(whole) - 36)] = rng.randrange(256)
        file.write_bytes(data)
        try:
            read_folder(tmp_path)
        except WeightsError:
            pass
    file.unlink()
    with pytest.raises(WeightsError, match="has no safetensors files"):
        read_layout(tmp_path)
    with pytest.raises(WeightsError, match="is no folder"):
        read_layout(tmp_path / "none")


def test_reading_a_folder_and_planning_import_no_torch() -> None:
    code = "import sys, toprope.tiers.plan.layout, toprope.tiers.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
