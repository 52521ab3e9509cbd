"""Bodies of requests and responses: JSON, safetensors, forms and raw bytes as values of a graph, and back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from toprope.flow.data_type import DT_STRING, DTYPES, DType, of_numpy, of_torch
from toprope.flow.exceptions import DfException
from toprope.flow.service.ports import Input, Ports
from toprope.flow.service.problems import Problem
from toprope.flow.tensor import Tensor

__all__ = [
    "SAFETENSORS",
    "check_names",
    "is_safetensors",
    "json_of",
    "json_of_values",
    "safetensors_of_values",
    "value_of_part",
    "values_of_json",
    "values_of_safetensors",
]

SAFETENSORS = "application/vnd.safetensors"

_BY_NAME = {each.torch: each for each in DTYPES if each.torch} | {"string": DT_STRING}
_TENSOR_KEYS = {"dtype", "shape", "data"}


# Requests


def values_of_json(body: bytes, ports: Ports) -> dict[str, Any]:
    """The inputs of a JSON object with one member for each.

    Raises:
        Problem: 400 where it is no such JSON, 422 where a member does not fit its input.
    """
    found = _parsed(body, "the body")
    if not isinstance(found, dict):
        raise Problem(
            400, f"the body must be a JSON object with the inputs {_names(ports)}, got {_kind(found)}",
            f'send {{{", ".join(f"{json.dumps(name)}: ..." for name in ports.inputs)}}}',
        )  # fmt: skip
    check_names(found, ports)
    return {name: value_of_json(found[name], each) for name, each in ports.inputs.items()}


def _parsed(body: bytes | str, where: str, field: str | None = None) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Problem(400, f"{where} is no JSON: {text}", field=field) from None


def check_names(given: Mapping[str, Any] | Sequence[str], ports: Ports) -> None:
    """Refuse unknown and missing inputs.

    Raises:
        Problem: 422.
    """
    for name in given:
        if name not in ports.inputs:
            raise Problem(
                422, f"there is no input {name!r}", f"send {_names(ports)}", field=str(name),
                expected=f"one of {_names(ports)}",
            )  # fmt: skip
    for name, each in ports.inputs.items():
        if name not in given:
            raise Problem(
                422, f"the input {name!r} is missing", f"send {_names(ports)}", field=name, expected=each.expected,
                got="nothing",
            )  # fmt: skip


def value_of_json(value: Any, to: Input) -> Any:
    """A value of JSON for an input.

    Raises:
        Problem: 422: it does not fit.
    """
    if isinstance(value, dict) and set(value) == _TENSOR_KEYS:
        return _tensor_object(value, to)
    if isinstance(value, dict) and set(value) == {"base64"} and not to.is_tensor:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise Problem(422, f"{to.name} is no base64: {error}", field=to.name, expected="base64") from None
    if not to.is_tensor:
        return value
    return _finished(_array(value, to.dtype, to), to, to.dtype)


def _tensor_object(value: dict[str, Any], to: Input) -> Any:
    """A tensor that says its dtype and shape."""
    dtype, shape = _BY_NAME.get(value["dtype"]) if isinstance(value["dtype"], str) else None, value["shape"]
    if dtype is None:
        raise _misfit(to, f"dtype {value['dtype']!r}", f"the dtypes are {', '.join(_BY_NAME)}")
    if not isinstance(shape, list) or not all(type(each) is int and each >= 0 for each in shape):
        raise _misfit(to, f"shape {shape!r}", "a shape is a list of numbers of at least 0")
    array = _array(value["data"], dtype, to)
    count = 1
    for each in shape:
        count *= each
    if array.size != count:
        raise _misfit(to, f"{array.size} elements for the shape {shape}", f"data must have {count} elements")
    return _finished(array.reshape(shape), to, dtype)


def _array(value: Any, dtype: DType | None, to: Input) -> Any:
    """Numbers of JSON as an array that can be cast to the dtype without loss of more than precision."""
    try:
        array = numpy.array(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise _misfit(to, f"a list that is no tensor: {error}", "lists of one depth must have one length") from None
    kind = array.dtype.kind
    if kind == "U" and (dtype is None or dtype == DT_STRING) and not to.for_model:
        try:
            return numpy.char.encode(array, "ascii")
        except UnicodeEncodeError:
            raise _misfit(to, "texts that are not ASCII", "tensors hold ASCII") from None
    if kind not in "bif":
        raise _misfit(to, _kind(value) if array.dtype == object else f"elements of {array.dtype}", "send numbers")
    if dtype is None:
        return array.astype("float32") if kind == "f" else array
    name = dtype.numpy or "float64"
    wanted = numpy.dtype(name)
    if dtype == DT_STRING:
        raise _misfit(to, "numbers", "send texts")
    if wanted.kind == "b" and kind != "b" and array.size:
        raise _misfit(to, f"{array.dtype} {list(array.shape)}", "send true and false")
    if wanted.kind in "iu":
        if kind == "f" and array.size:
            raise _misfit(to, f"{array.dtype} {list(array.shape)}", "send whole numbers")
        limits = numpy.iinfo(wanted)
        if kind == "i" and array.size and not (limits.min <= int(array.min()) and int(array.max()) <= limits.max):
            raise _misfit(
                to, f"numbers from {array.min()} to {array.max()}", f"{name} has {limits.min} to {limits.max}"
            )
    with numpy.errstate(over="ignore"):
        cast = array.astype(wanted)
    if wanted.kind == "f" and not numpy.isfinite(cast).all():
        raise _misfit(
            to, f"a number that {dtype.torch} cannot hold", f"{dtype.torch} ends at {numpy.finfo(wanted).max}"
        )
    return cast


def _finished(array: Any, to: Input, dtype: DType | None) -> Any:
    """An array as the input takes it, its dtype and shape checked."""
    if dtype is not None and not dtype.numpy and dtype != DT_STRING:  # bfloat16
        tensor = torch.from_numpy(array).to(getattr(torch, dtype.torch))
        _check(tuple(tensor.shape), dtype, to)
        return tensor
    found = of_numpy(array.dtype.name)
    _check(array.shape, found, to)
    return torch.from_numpy(array) if to.for_model else Tensor.over(array)


def _check(shape: tuple[int, ...], dtype: DType, to: Input) -> None:
    is_same = to.dtype is None or to.dtype == dtype
    wanted = to.shape
    fits = wanted is None or (
        len(wanted) == len(shape) and all(side < 0 or side == size for side, size in zip(wanted, shape, strict=True))
    )
    if not is_same or not fits:
        raise _misfit(to, f"{dtype.torch or 'string'} {list(shape)}")


def _misfit(to: Input, got: str, do: str = "") -> Problem:
    return Problem(
        422, f"{to.name} must be {to.expected}, got {got}", do, field=to.name, expected=to.expected, got=got
    )  # fmt: skip


def values_of_safetensors(body: bytes, ports: Ports) -> dict[str, Any]:
    """The inputs of a safetensors file with one tensor for each.

    Raises:
        Problem: 400 where it is no such file, 422 where a tensor does not fit its input.
    """
    found = _tensors(body, "the body")
    check_names(found, ports)
    return {name: value_of_tensor(found[name], each) for name, each in ports.inputs.items()}


def _tensors(body: bytes, where: str, field: str | None = None) -> dict[str, torch.Tensor]:
    try:
        return load(body)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise Problem(400, f"{where} is no safetensors file: {error}", field=field) from None


def value_of_tensor(tensor: torch.Tensor, to: Input) -> Any:
    """A tensor for an input. Errors as of `value_of_json`."""
    try:
        dtype = of_torch(str(tensor.dtype))
    except DfException as error:
        raise _misfit(to, str(tensor.dtype), error.message) from None
    _check(tuple(tensor.shape), dtype, to)
    return tensor if to.for_model or not dtype.numpy else Tensor.over(tensor.numpy())


def value_of_part(body: bytes | str, media_type: str, file_name: str, to: Input) -> Any:
    """A part of a form for an input: JSON, a safetensors file with one tensor, a text, or bytes.

    Raises:
        Problem: 400, 422.
    """
    if media_type in _SAFETENSORS_TYPES or file_name.endswith(".safetensors"):
        found = _tensors(body if isinstance(body, bytes) else body.encode(), f"the part {to.name}", to.name)
        if to.name in found or len(found) == 1:
            return value_of_tensor(found.get(to.name, next(iter(found.values()))), to)
        raise _misfit(to, f"a file with the tensors {', '.join(found) or 'none'}", "send one tensor")
    if media_type == "application/json" or (to.is_tensor and isinstance(body, str)):
        return value_of_json(_parsed(body, f"the part {to.name}", to.name), to)
    if to.is_tensor:
        raise _misfit(to, f"bytes ({media_type})", f"send JSON, or a file of {SAFETENSORS}")
    return body


_SAFETENSORS_TYPES = (SAFETENSORS, "application/safetensors", "application/x-safetensors")


def is_safetensors(media_type: str) -> bool:
    """True for the media types of safetensors files."""
    return media_type in _SAFETENSORS_TYPES


def _names(ports: Ports) -> str:
    return ", ".join(ports.inputs)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a bool", type(None): "null"}
    return names.get(type(value), "a number")


# Responses


def json_of_values(values: Sequence[Any], ports: Ports) -> bytes:
    """The outputs as a JSON object with one member for each.

    Raises:
        Problem: 406: JSON cannot hold an output.
    """
    return json_of(dict(zip(ports.outputs, values, strict=True)))


def json_of(value: Any) -> bytes:
    """Values with tensors as JSON. Errors as of `json_of_values`."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        text = "a number that is not finite" if "Out of range" in str(error) else str(error)
        raise Problem(
            406, f"the result has {text}, which JSON cannot hold", f"ask for it with Accept: {SAFETENSORS}"
        ) from None
    except (TypeError, RecursionError) as error:
        raise Problem(
            406, f"the result cannot be written as JSON: {error}",
            "return tensors, numbers, texts, bytes, and lists and dicts of them",
        ) from None  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.numpy(copy=True)
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, numpy.ndarray):
        return numpy.char.decode(value, "ascii").tolist() if value.dtype.kind == "S" else value.tolist()
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"an output is a {type(value).__name__}")


def safetensors_of_values(values: Sequence[Any], ports: Ports) -> bytes:
    """The outputs as a safetensors file with one tensor for each.

    Raises:
        Problem: 406: an output is no tensor.
    """
    found: dict[str, torch.Tensor] = {}
    for name, value in zip(ports.outputs, values, strict=True):
        array = value.numpy(copy=False) if isinstance(value, Tensor) and not _is_text(value) else value
        if isinstance(array, numpy.ndarray) and array.dtype.kind in "biufc":
            array = torch.from_numpy(array if array.flags.writeable else array.copy())
        if not isinstance(array, torch.Tensor):
            raise Problem(
                406, f"the output {name} is no tensor, so it cannot be in a safetensors file",
                "ask for application/json", field=name,
            )  # fmt: skip
        array = array.detach().contiguous()
        storages = {each.untyped_storage().data_ptr() for each in found.values()}
        found[name] = array.clone() if array.untyped_storage().data_ptr() in storages else array
    return save(found)


def _is_text(value: Tensor) -> bool:
    return bool(value.get_data_type() == DT_STRING)
