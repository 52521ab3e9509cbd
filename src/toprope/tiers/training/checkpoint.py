"""Checkpoints of a training run: weights, optimizer states and random numbers, copied tile by tile.

`Handle.save` and `Handle.restore` come here. No more than one tile is in memory at a time. A checkpoint is one
safetensors file: `model.*` is the model's state_dict, `optimizer.*` the states, `toprope.rest` everything that is no
tensor (torch.save, read with weights_only). These names are a file format: a change of them makes existing
checkpoints unreadable. The file is written to a temporary file first, so that it is either complete or not there; one
that does not fit the model changes nothing. Tests: tests/tiers/test_tiers_training.py.
"""

from __future__ import annotations

import errno
import io
import json
import os
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from toprope.errors import TierCapacityError, TierReadError, TierWriteError, UsageError, WeightsError
from toprope.sizes import decimal
from toprope.tiers.store.headers import Stored, read_header
from toprope.tiers.store.memory import DTYPES, flat
from toprope.tiers.training.blocks import Blocks
from toprope.tiers.training.offloaded_tensor import StoredTensor
from toprope.tiers.training.optimizer import Optimizers
from toprope.tiers.training.stepping import is_elementwise
from toprope.tiers.training.weights import Weights
from toprope.whole_file import writing_whole

__all__ = ["Entry", "Reader", "restore", "save", "write_file"]

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Entry:
    """A tensor to be written: its name, dtype and shape, and its pieces in row-major order."""

    def __init__(self, name: str, dtype: torch.dtype, shape: Sequence[int], pieces: Iterable[torch.Tensor]) -> None:
        if dtype not in _NAMES:
            raise WeightsError(f"{name} is of {dtype}, which a safetensors file cannot hold.", do="convert it")
        self.name, self.dtype, self.shape, self.pieces = name, dtype, tuple(shape), pieces

    @property
    def nbytes(self) -> int:
        """Its bytes in the file."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


def write_file(path: Path, entries: Sequence[Entry], note: dict[str, str]) -> None:
    """Write a file atomically: to a temporary file next to it, which replaces it once it is on the disk.

    Raises:
        TierCapacityError: the disk is full. The old file stays.
        TierWriteError: it cannot be written for another reason. The old file stays.
    """
    header: dict[str, object] = {"__metadata__": note}
    at = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": _NAMES[entry.dtype], "shape": entry.shape, "data_offsets": [at, at + entry.nbytes]
        }  # fmt: skip
        at += entry.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    try:
        with writing_whole(path, durable=True) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for entry in entries:
                for piece in entry.pieces:
                    file.write(_bytes(piece.detach().cpu().contiguous()))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise TierWriteError(
                f"the checkpoint {path} cannot be written: {error.strerror}.",
                do="check the folder and the disk; the checkpoint that was there before still is",
            ) from error
        raise TierCapacityError(
            f"the disk has no room for the checkpoint {path}.",
            looked_at=f"it takes {decimal(8 + len(text) + at)}",
            do="make room there, or write it to another disk; the checkpoint that was there before still is",
        ) from None


class Reader:
    """Reads tensors of a file, piece by piece.

    Raises:
        WeightsError: it cannot be read, or is no whole safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, Stored] = {each.name: each for each in read_header(path)}
        self._file = path.open("rb", buffering=0)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def dtype(self, name: str) -> torch.dtype | None:
        """The dtype of a tensor; None if torch has no such dtype."""
        return DTYPES.get(self.tensors[name].dtype)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Read elements of a tensor in row-major order into a tensor with one dimension on the host."""
        tensor = self.tensors[name]
        dtype = DTYPES[tensor.dtype]
        stop = tensor.bytes // dtype.itemsize if stop is None else stop
        out = torch.empty(stop - start, dtype=dtype)
        view, at = _bytes(out), tensor.begin + start * dtype.itemsize
        while view:
            try:
                count = os.preadv(self._file.fileno(), [view], at)
            except OSError as error:
                raise TierReadError(
                    f"the checkpoint {self.path} cannot be read: {error.strerror}.",
                    looked_at=f"{name}, at byte {at}",
                    do="check the disk, or take another checkpoint",
                ) from error
            if not count:
                raise WeightsError(f"{self.path} ends in the middle of {name}.", do="take another checkpoint")
            view, at = view[count:], at + count
        return out

    def pieces(self, name: str, most: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Read a tensor in pieces of limited length, each with the index of its first element."""
        tensor = self.tensors[name]
        count = tensor.bytes // DTYPES[tensor.dtype].itemsize
        for start in range(0, count, most):
            yield start, self.read(name, start, min(start + most, count))


def _bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host."""
    if not tensor.numel():
        return memoryview(b"")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


PIECE = 2**20
"""Elements that are read or written at once."""

_REST = "toprope.rest"


def save(
    path: str | os.PathLike[str], model: torch.nn.Module, weights: Weights, optimizers: Optimizers, extra: Any = None
) -> None:
    """Write a checkpoint.

    Args:
        path: the file. An old one is replaced once the new one is on the disk.
        model: the model with the parameters and persistent buffers.
        weights: access to the parameters' values.
        optimizers: the optimizers with the states.
        extra: other data of the run, such as the number of the step and a scheduler's state_dict: anything that
            torch.load reads with weights_only.

    Raises:
        UsageError: torch.load would not read `extra`, or gradients are accumulated that a checkpoint would lose.
        TierCapacityError: the disk is full; the old file is still there.
    """
    left = [name for name, each in model.named_parameters() if each.grad is not None and bool((each.grad != 0).any())]
    if left:
        raise UsageError(
            "a checkpoint holds no gradients, and some are accumulated.",
            looked_at=f"{len(left)} parameters, such as {left[0]}",
            do="save after optimizer.step() and optimizer.zero_grad()",
        )
    rest = {
        "optimizers": [_rest_of_state(each) for each in optimizers.taken],
        "random": _random_state(weights),
        "extra": extra,
    }
    file = io.BytesIO()
    torch.save(rest, file)
    _check_loads(file)
    blob = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    entries = [Entry(_REST, torch.uint8, blob.shape, [blob])]
    for name, tensor in _tensors(model):
        entries.append(Entry(f"model.{name}", tensor.dtype, tensor.shape, _pieces(tensor, weights)))
    for key, state in _states(optimizers):
        entries.append(Entry(key, state.dtype, state.shape, _state_pieces(state)))
    write_file(Path(path), entries, {"format": "pt"})


def restore(path: str | os.PathLike[str], model: torch.nn.Module, weights: Weights, optimizers: Optimizers) -> Any:
    """Load a checkpoint: weights, buffers, optimizer states and random numbers.

    Returns:
        The `extra` that was given to `save`.

    Raises:
        WeightsError: the file is damaged, or is for another model or other optimizers; nothing is changed then.
    """
    with Reader(Path(path)) as reader:
        if _REST not in reader.tensors:
            raise WeightsError(f"{path} is no checkpoint of a training run.", do="name a file that handle.save wrote")
        rest = torch.load(io.BytesIO(reader.read(_REST).numpy().tobytes()), weights_only=True)
        _check_model(reader, model)
        _check_optimizers(reader, rest["optimizers"], optimizers)
        with torch.no_grad():
            for name, tensor in _tensors(model):
                _fill(reader, f"model.{name}", tensor, weights)
            weights.updated()
            for number, optimizer in enumerate(optimizers.taken):
                _fill_states(reader, number, rest["optimizers"][number], optimizer, optimizers)
        _set_random_state(rest["random"], weights)
        return rest["extra"]


# Weights


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers, tied ones once."""
    yield from model.named_parameters()
    passing = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
    }
    for name, buffer in model.named_buffers():
        if name not in passing:
            yield name, buffer


def _pieces(tensor: torch.Tensor, weights: Weights) -> Iterator[torch.Tensor]:
    resident = weights.resident(tensor)
    if resident is not None:
        yield from torch.split(resident.contiguous().view(-1), PIECE)
        return
    count = tensor.numel()
    most = PIECE if tensor.is_contiguous() else count
    for start in range(0, count, most):
        out = torch.empty(min(most, count - start), dtype=tensor.dtype, device=tensor.device)
        weights.read(tensor, start, start + out.numel(), out).wait()
        yield out if most == PIECE else out.as_strided(tensor.shape, tensor.stride()).contiguous()


def _fill(reader: Reader, name: str, tensor: torch.Tensor, weights: Weights) -> None:
    resident = weights.resident(tensor)
    if resident is not None and not resident.is_contiguous():
        resident.copy_(reader.read(name).view(tensor.shape))
    elif resident is not None:
        for start, values in reader.pieces(name, PIECE):
            resident.view(-1)[start : start + values.numel()].copy_(values)
    elif tensor.is_contiguous():
        for start, values in reader.pieces(name, PIECE):
            weights.write(tensor, start, values.to(tensor.device))
    else:
        whole = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        weights.write(tensor, 0, flat(whole.copy_(reader.read(name).view(tensor.shape))).to(tensor.device))


def _check_model(reader: Reader, model: torch.nn.Module) -> None:
    expected = {f"model.{name}": (tensor.dtype, tuple(tensor.shape)) for name, tensor in _tensors(model)}
    found = {
        name: (reader.dtype(name), each.shape) for name, each in reader.tensors.items() if name.startswith("model.")
    }
    for name in expected.keys() | found.keys():
        if expected.get(name) != found.get(name):
            raise WeightsError(
                f"{reader.path} is the checkpoint of another model.",
                looked_at=f"{name} is {_described(found.get(name))} there, "
                f"and {_described(expected.get(name))} in the model",
                do="build the model as it was when the checkpoint was written",
            )


def _described(tensor: tuple[torch.dtype | None, tuple[int, ...]] | None) -> str:
    return "not" if tensor is None else f"of {tensor[0]} and shape {list(tensor[1])}"


# Optimizers


def _rest_of_state(optimizer: Any) -> dict[str, Any]:
    """The part of an optimizer's state that is not stored as tensors: its class, scalars and groups."""
    state_dict = optimizer.state_dict()
    scalars = {
        index: {name: each for name, each in state.items() if not _is_entry(each)}
        for index, state in state_dict["state"].items()
    }
    return {"class": type(optimizer).__name__, "state": scalars, "param_groups": state_dict["param_groups"]}


def _is_entry(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 1


def _states(optimizers: Optimizers) -> Iterator[tuple[str, torch.Tensor]]:
    for number, optimizer in enumerate(optimizers.taken):
        for index, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if _is_entry(value):
                    yield f"optimizer.{number}.{index}.{name}", value


def _state_pieces(state: torch.Tensor) -> Iterator[torch.Tensor]:
    if not isinstance(state, StoredTensor) or not state.is_contiguous():
        yield state.values() if isinstance(state, StoredTensor) else state
        return
    for number, tile in enumerate(state.blocks.cut):
        values = torch.empty(tile.stop - tile.start, dtype=state.dtype, device=state.device)
        state.blocks.read_tile(number, values).wait()
        yield values


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _check_optimizers(reader: Reader, rest: Sequence[dict[str, Any]], optimizers: Optimizers) -> None:
    def shape(groups: Sequence[dict[str, Any]]) -> list[int]:
        return [len(group["params"]) for group in groups]

    found = [(each["class"], shape(each["param_groups"])) for each in rest]
    expected = [(type(each).__name__, shape(each.param_groups)) for each in optimizers.taken]
    if found != expected:
        raise WeightsError(
            f"{reader.path} was written with other optimizers.",
            looked_at=f"{found} there, {expected} here (class, parameters of each group)",
            do="make the same optimizers, and give them to the handle before the checkpoint is read",
        )


def _fill_states(reader: Reader, number: int, rest: dict[str, Any], optimizer: Any, optimizers: Optimizers) -> None:
    optimizer.load_state_dict({"state": rest["state"], "param_groups": rest["param_groups"]})
    prefix = f"optimizer.{number}."
    parameters = _parameters(optimizer)
    for key, stored in reader.tensors.items():
        if not key.startswith(prefix):
            continue
        index, name = key.removeprefix(prefix).split(".", 1)
        parameter, dtype = parameters[int(index)], reader.dtype(key)
        state = optimizer.state[parameter]
        like = torch.empty(stored.shape, dtype=dtype, device="meta")
        store = optimizers.place("states", parameter)
        tiled = is_elementwise(like, parameter) and parameter.is_contiguous() and stored.bytes >= optimizers.smallest
        if tiled and store is not None:
            blocks = Blocks(store, f"state/{name}", parameter, optimizers.cut(parameter), dtype)
            for tile_number, tile in enumerate(blocks.cut):
                blocks.write_tile(tile_number, reader.read(key, tile.start, tile.stop).to(parameter.device))
            state[name] = StoredTensor(blocks)
            continue
        values = reader.read(key).view(stored.shape)
        if values.shape == parameter.shape:
            values = torch.empty_like(parameter, dtype=dtype, device="cpu").copy_(values)
        state[name] = values.to(parameter.device)
        optimizers.move_out(parameter, state)


# Random numbers, and the rest


def _check_loads(file: io.BytesIO) -> None:
    file.seek(0)
    try:
        torch.load(file, weights_only=True)
    except Exception as error:  # pickle raises errors of any kind
        raise UsageError(
            "the `extra` data of the checkpoint could not be read back.",
            looked_at=str(error).strip().splitlines()[0],
            do="give numbers, texts, lists, dictionaries and tensors, such as state_dict() of an object",
        ) from None


def _random_state(weights: Weights) -> dict[str, Any]:
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if weights.device.type != "cpu":
        state["device"] = torch.get_device_module(weights.device).get_rng_state(weights.device)
    if "numpy" in sys.modules:
        kind, keys, *numbers = sys.modules["numpy"].random.get_state()
        state["numpy"] = [kind, keys.tolist(), *numbers]
    return state


def _set_random_state(state: dict[str, Any], weights: Weights) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "device" in state and weights.device.type != "cpu":
        torch.get_device_module(weights.device).set_rng_state(state["device"], weights.device)
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(state["numpy"]))
