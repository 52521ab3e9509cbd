"""Serialization of tensors for Ray: their data as a separate buffer, also from and to simulated cards.

Every process of a session on Ray registers it (`know_tensors`) before it sends or returns something; the reducers are
those of `transport.serialization`, the registry is Ray's and ends with it. Tests:
tests/functions/test_functions_ray_parts.py, and (slow) tests/functions/test_functions_ray.py.
"""

from __future__ import annotations

import sys
from typing import Any

from toprope.functions.transport import serialization

__all__ = ["know_tensors"]

_known = False


def know_tensors() -> None:
    """Register the tensor serializer once torch is loaded; imports nothing.

    Arrays of numpy go Ray's own way, which is without a copy. Tensors are copied once where they arrive, for what is
    written to them is the receiver's own, and Ray's memory is everybody's.
    """
    global _known
    torch = sys.modules.get("torch")
    if _known or torch is None:
        return
    tensor, parameter = getattr(torch, "Tensor", None), getattr(getattr(torch, "nn", None), "Parameter", None)
    if tensor is None or parameter is None:
        return  # torch is being imported
    from ray.util import register_serializer

    for kind in (tensor, parameter):
        register_serializer(kind, serializer=serialization._reduce_tensor, deserializer=_made)
    _known = True


def forget_tensors() -> None:
    """Note that Ray has shut down, and its serializers with it."""
    global _known
    _known = False


def _made(reduced: Any) -> Any:
    function, arguments = reduced[:2]
    return function(*arguments)
