"""Saving and loading: copies, pickles, torch.save and torch.load to any device, safetensors.

Holds csrc/torch and torch.save against the values that were saved. tests/sim/test_simulated.py runs this module in a
process with simulated cards.
"""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.testing import assert_close

from against_cpu import CARD, assert_same

SECOND, THIRD = torch.device("npu:1"), torch.device("npu:2")


def saved(thing: Any, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(thing, buffer, **options)
    buffer.seek(0)
    return buffer


LOCATIONS: dict[str, tuple[Any, str]] = {
    "where it was": (None, "npu:0"),
    "the host": ("cpu", "cpu"),
    "a card by name": ("npu:1", "npu:1"),
    "the current card": ("npu", "npu:0"),
    "a table": ({"npu:0": "npu:2"}, "npu:2"),
    "a device": (torch.device("npu:1"), "npu:1"),
    "a function": (lambda storage, location: storage.npu(3), "npu:3"),
    "a function that says where": (lambda storage, location: None if location != "npu:0" else storage, "cpu"),
}


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("name", LOCATIONS)
def test_load_to(name: str, weights_only: bool) -> None:
    location, expected = LOCATIONS[name]
    weights = nn.Linear(4, 4).to(CARD).state_dict()
    loaded = torch.load(saved(weights), map_location=location, weights_only=weights_only)
    for key, weight in weights.items():
        assert loaded[key].device == torch.device(expected)
        assert_close(loaded[key].cpu(), weight.cpu(), rtol=0, atol=0)
        assert loaded[key].data_ptr() != weight.data_ptr()


def test_what_the_host_saved_is_loaded_to_a_card() -> None:
    loaded = torch.load(saved(torch.arange(3.0)), map_location="npu:2")
    assert_same(loaded, torch.arange(3.0), THIRD)
    with torch.npu.device(1):
        assert torch.load(saved(torch.ones(3)), map_location="npu").device == SECOND


def test_a_card_that_is_not_there_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"npu"):
        torch.load(saved(torch.ones(3, device=CARD)), map_location="npu:9")


def test_the_old_format() -> None:
    buffer = saved(torch.arange(3.0, device=CARD), _use_new_zipfile_serialization=False)
    assert_same(torch.load(buffer), torch.arange(3.0))
    buffer.seek(0)
    assert torch.load(buffer, map_location="npu:1").device == SECOND


def test_load_from_a_mapped_file(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(6.0, device=CARD)}, tmp_path / "a.pt")
    loaded = torch.load(tmp_path / "a.pt", mmap=True, map_location="cpu")
    assert_close(loaded["a"], torch.arange(6.0))
    assert_same(torch.load(tmp_path / "a.pt", mmap=True, map_location="npu:1"), {"a": torch.arange(6.0)}, SECOND)


def test_load_into_the_device_of_a_context() -> None:
    with torch.device(SECOND):
        assert torch.load(saved(torch.ones(2))).device == SECOND


def test_views_share_their_storage_after_loading() -> None:
    base = torch.arange(6.0, device=CARD)
    loaded = torch.load(saved([base, base[2:4], base.view(2, 3).t()]))
    loaded[0].add_(1)
    assert_same(loaded, [torch.arange(1.0, 7), torch.tensor([3.0, 4]), torch.arange(1.0, 7).view(2, 3).t()])


def test_dtypes_and_shapes_are_kept() -> None:
    host = [
        torch.ones(2).to(dtype)
        for dtype in (torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.float8_e5m2)
    ]
    host += [torch.empty(0, 3), torch.tensor(2.0), torch.randn(2, 3, 4).permute(2, 0, 1)]
    loaded = torch.load(saved([t.to(CARD) for t in host]))
    for ours, theirs in zip(loaded, host, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        assert torch.equal(ours.cpu().to(torch.complex64), theirs.to(torch.complex64))


def test_a_whole_training_state() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(CARD)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model(torch.randn(4, 3, device=CARD)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.npu.get_rng_state()}
    loaded = torch.load(saved(state), map_location="npu:1")
    again = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(SECOND)
    again.load_state_dict(loaded["model"])
    other = torch.optim.Adam(again.parameters(), 0.1)
    other.load_state_dict(loaded["optimizer"])
    assert other.state[again[0].weight]["exp_avg"].device == SECOND
    assert_same(list(again.state_dict().values()), [t.cpu() for t in model.state_dict().values()], SECOND)


def test_a_model_saved_whole() -> None:
    model = nn.Linear(2, 2).to(CARD)
    loaded = torch.load(saved(model), weights_only=False, map_location="npu:1")
    assert_same(loaded.weight, model.weight.detach().cpu(), SECOND)


def test_load_state_dict_across_devices() -> None:
    host, card = nn.Linear(2, 2), nn.Linear(2, 2).to(CARD)
    card.load_state_dict(host.state_dict())
    assert_same(card.weight, host.weight)
    with torch.no_grad():
        card.weight.mul_(2)
    host.load_state_dict(card.state_dict())
    assert_same(card.weight, host.weight)
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    empty.load_state_dict(card.state_dict(), assign=True)
    assert empty.weight.device == CARD


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str) -> None:
    twice = COPIES[name]
    leaf = nn.Parameter(torch.arange(3.0, device=SECOND))
    leaf.extra = "kept"
    (leaf * 2).sum().backward()
    again = twice(leaf)
    assert_same(again, leaf.detach().cpu(), SECOND)
    assert isinstance(again, nn.Parameter)
    assert again.requires_grad
    assert again.data_ptr() != leaf.data_ptr()
    with torch.no_grad():
        again.add_(1)
    assert_same(leaf, torch.arange(3.0), SECOND)
    model = nn.LSTM(2, 3).to(CARD)
    assert_same(list(twice(model).parameters()), [p.detach().cpu() for p in model.parameters()])


def test_deepcopy_keeps_the_gradient_and_what_shares_memory() -> None:
    leaf = torch.ones(2, device=CARD, requires_grad=True)
    leaf.sum().backward()
    assert_same(copy.deepcopy(leaf).grad, torch.ones(2))
    base = torch.arange(4.0, device=CARD)
    first, view = copy.deepcopy([base, base[1:3]])
    first.zero_()
    assert_same(view, torch.zeros(2))
    assert_same(base, torch.arange(4.0))


def test_storages_are_copied() -> None:
    storage = torch.arange(4, dtype=torch.uint8, device=CARD).untyped_storage()
    for again in (storage.clone(), copy.deepcopy(storage), storage.npu(0), storage.cpu().npu()):
        assert again.device == CARD
        assert bytes(again.cpu()) == bytes([0, 1, 2, 3])
    assert storage.npu(1).device == SECOND
    assert list(storage.cpu()) == [0, 1, 2, 3]
    assert storage.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("device", ["npu", "npu:1", "cpu"])
def test_safetensors(tmp_path: Path, device: str) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)).to(CARD)
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file({key: weight.bfloat16() for key, weight in model.state_dict().items()}, file)
    expected = torch.device("npu:0" if device == "npu" else device)
    loaded = safetensors.torch.load_file(file, device=device)
    assert set(loaded) == set(model.state_dict())
    for key, weight in model.state_dict().items():
        assert_same(loaded[key], weight.bfloat16().cpu(), expected)
    with safetensors.safe_open(file, framework="pt", device=device) as opened:
        part = opened.get_slice("0.weight")[:, 1:]
        assert part.device == expected
        assert_close(part.cpu(), model[0].weight.detach().bfloat16().cpu()[:, 1:])


def test_safetensors_load_into_a_model(tmp_path: Path) -> None:
    model, other = nn.Linear(3, 2).to(CARD), nn.Linear(3, 2).to(SECOND)
    safetensors.torch.save_model(model, tmp_path / "model.safetensors")
    safetensors.torch.load_model(other, tmp_path / "model.safetensors", device="npu:1")
    assert_same(other.weight, model.weight.detach().cpu(), SECOND)
    assert_same(
        safetensors.torch.load(safetensors.torch.save({"a": model.bias.detach()}))["a"].to(CARD), model.bias.cpu()
    )
