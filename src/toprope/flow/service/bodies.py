"""Bodies of requests and responses: JSON, safetensors, forms and raw bytes as values of a graph, and back.

`service.app` calls it. Input comes from strangers: every check of sizes, types and names is here, and each refusal is
a `Problem` with the place of the mistake. The formats are public (docs/serve.md), and the limits of sizes are those of
numpy and torch. Tests: tests/flow/test_serve_app.py.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from toprope.flow.data_type import DT_BOOL, DT_FLOAT, DT_INT64, DT_STRING, DTYPES, DType, of_numpy, of_torch
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

_MOST_DIMENSIONS = 64
"""Of an array of numpy and of a tensor of torch."""

_MOST_ELEMENTS = 2**60 - 1
"""Product of the sides of a shape, those of 0 left out, which numpy and torch refuse where its bytes are no int64."""

_MOST_TEXT = 256 * 2**20
"""Bytes of a tensor of texts: a long one among many short ones would take any amount."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60
_SHORT.maxlist = 8


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

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise Problem(
                400, f"{where} has the key {_brief(name)} more than once", "name it once", field=field or name
            )
        return found

    try:
        return json.loads(body, parse_constant=refuse, object_pairs_hook=unique)
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
    return _as_input_takes_it(_array(value, to.dtype, to), to, to.dtype)


def _tensor_object(value: dict[str, Any], to: Input) -> Any:
    """A tensor that says its dtype and shape."""
    dtype, shape = _BY_NAME.get(value["dtype"]) if isinstance(value["dtype"], str) else None, value["shape"]
    if dtype is None:
        raise _misfit(to, f"dtype {_brief(value['dtype'])}", f"the dtypes are {', '.join(_BY_NAME)}")
    if not isinstance(shape, list) or not all(type(each) is int and each >= 0 for each in shape):
        raise _misfit(to, f"shape {_brief(shape)}", "a shape is a list of numbers of at least 0")
    _check_size(shape, to)
    array = _array(value["data"], dtype, to)
    count = math.prod(shape)
    if array.size != count:
        raise _misfit(to, f"{array.size} elements for the shape {shape}", f"data must have {count} elements")
    return _as_input_takes_it(array.reshape(shape), to, dtype)


def _check_size(shape: Sequence[int], to: Input) -> None:
    """Refuse shapes that numpy and torch refuse, also those of tensors without elements."""
    if len(shape) > _MOST_DIMENSIONS:
        raise _misfit(to, f"a shape of {len(shape)} dimensions", f"tensors have at most {_MOST_DIMENSIONS}")
    size = 1
    for each in shape:
        size *= min(max(each, 1), _MOST_ELEMENTS + 1)
        if size > _MOST_ELEMENTS:
            raise _misfit(to, f"shape {_brief(list(shape))}", f"the sides of a shape make at most {_MOST_ELEMENTS}")


def _array(value: Any, dtype: DType | None, to: Input) -> Any:
    """Elements of JSON as an array of the dtype, without loss of more than precision.

    Without a dtype, numbers are float32, int64 or bool. They are looked at before numpy converts them: it makes texts
    of numbers, and floats of large integers, where a list has both.
    """
    array = numpy.array(value, dtype=object)  # nested lists of different lengths leave lists as elements
    found = set(map(type, array.flat))
    is_text = dtype == DT_STRING if dtype is not None else found == {str} and not to.for_model
    taken: tuple[type, ...] = (str,) if is_text else (bool, int, float)
    if not found <= set(taken):
        text = "lists of one depth must have one length; " if found & {list} else ""
        raise _misfit(to, _first_wrong(array, lambda each: type(each) not in taken),
                      f"{text}send {'texts' if is_text else 'numbers'}")  # fmt: skip
    if is_text:
        return _texts(array, to)
    if dtype is None:
        dtype = DT_FLOAT if float in found or not found else DT_INT64 if int in found else DT_BOOL
    wanted = numpy.dtype(dtype.numpy or "float64")
    if wanted.kind == "f":
        return _floats(array, wanted, dtype, to)
    if wanted.kind == "b":
        if not found <= {bool}:
            raise _misfit(to, _first_wrong(array, lambda each: type(each) is not bool), "send true and false")
    elif float in found:
        raise _misfit(to, _first_wrong(array, lambda each: type(each) is float), "send whole numbers")
    elif array.size:
        limits = numpy.iinfo(wanted)
        if min(array.flat) < limits.min or max(array.flat) > limits.max:
            which = _first_wrong(array, lambda each: not limits.min <= each <= limits.max)
            raise _misfit(to, which, f"{wanted} has {limits.min} to {limits.max}")
    return array.astype(wanted)


def _floats(array: Any, wanted: Any, dtype: DType, to: Input) -> Any:
    target = getattr(torch, dtype.torch)
    with numpy.errstate(over="ignore"):
        try:
            cast = array.astype(wanted)
        except OverflowError:  # an integer that no float can hold
            cast = numpy.vectorize(_float, otypes=[wanted])(array)
    held = torch.from_numpy(cast).to(target) if not dtype.numpy and cast.size else cast
    is_held = numpy.isfinite(held) if held is cast else held.isfinite().numpy()
    if not is_held.all():
        place = numpy.unravel_index(int(numpy.argmin(is_held)), array.shape)
        raise _misfit(to, _element(array[place], place), f"{dtype.torch} ends at {torch.finfo(target).max}")
    return cast


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _texts(array: Any, to: Input) -> Any:
    """An array of texts, each as long as the longest."""
    if not all(map(str.isascii, array.flat)):
        raise _misfit(
            to, f"texts that are not ASCII: {_first_wrong(array, lambda each: not each.isascii())}", "send ASCII"
        )
    size = array.size * max(map(len, array.flat), default=0)
    if size > _MOST_TEXT:
        raise _misfit(to, f"texts of {size} bytes, each as long as the longest", f"send at most {_MOST_TEXT} bytes")
    return numpy.array([each.encode() for each in array.flat], dtype="S").reshape(array.shape)


def _first_wrong(array: Any, is_wrong: Callable[[Any], bool]) -> str:
    """The first wrong element of an array of objects, with its place."""
    return next(_element(each, place) for place, each in numpy.ndenumerate(array) if is_wrong(each))


def _element(value: Any, place: Sequence[Any]) -> str:
    shown = _kind(value) if isinstance(value, dict | list | None) else _brief(value)
    where = ", ".join(str(int(each)) for each in place)
    return f"{shown} at [{where}]" if place else shown


def _brief(value: Any) -> str:
    """A value of JSON in an error: its beginning and end where it is long."""
    return _SHORT.repr(value)


def _as_input_takes_it(array: Any, to: Input, dtype: DType | None) -> Any:
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
    except (SafetensorError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise Problem(400, f"{where} is no safetensors file: {error}", field=field) from None


def value_of_tensor(tensor: torch.Tensor, to: Input) -> Any:
    """A tensor for an input. Errors as of `value_of_json`."""
    try:
        dtype = of_torch(str(tensor.dtype))
    except DfException as error:
        raise _misfit(to, str(tensor.dtype), error.message) from None
    _check_size(tensor.shape, to)
    _check(tuple(tensor.shape), dtype, to)
    return tensor if to.for_model or not dtype.numpy else Tensor.over(tensor.numpy())


def value_of_part(body: bytes | str, media_type: str, file_name: str, to: Input) -> Any:
    """A part of a form for an input: JSON, a safetensors file with one tensor, a text, or bytes.

    Raises:
        Problem: 400, 422.
    """
    if media_type in _SAFETENSORS_TYPES or file_name.endswith(".safetensors"):
        found = _tensors(body if isinstance(body, bytes) else body.encode(), f"the part {to.name}", to.name)
        if len(found) == 1:
            return value_of_tensor(next(iter(found.values())), to)
        raise _misfit(to, f"a file with the tensors {', '.join(sorted(found)) or 'none'}", "send one tensor")
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
    return value.tensor_desc.dtype == DT_STRING
