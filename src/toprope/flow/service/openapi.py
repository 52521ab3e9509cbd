"""The OpenAPI description of a service, with the inputs and outputs of its graph; pure.

`service.app` serves it. Its keys are OpenAPI 3.1's, its texts are free. What clients may send and get is decided in
`service.bodies` and `service.app`: change both. Tests: tests/flow/test_serve_app.py.
"""

from __future__ import annotations

from typing import Any

from toprope.flow.service.ports import Input, Ports
from toprope.flow.service.problems import MEDIA_TYPE as PROBLEM

__all__ = ["description"]

_TENSOR = {
    "type": "object",
    "required": ["dtype", "shape", "data"],
    "properties": {
        "dtype": {"type": "string", "examples": ["float32"]},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "data": {"description": "elements, as a flat list or nested ones"},
    },
}
_PROBLEM = {
    "type": "object",
    "properties": {
        "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
        "detail": {"type": "string"}, "do": {"type": "string"}, "field": {"type": "string"},
        "expected": {"type": "string"}, "got": {"type": "string"},
    },
}  # fmt: skip

_ERRORS = {
    "400": "The body cannot be read.", "406": "The result has no such form.", "408": "The body did not come in time.",
    "413": "The body is too large.", "415": "The body has an unknown type.", "422": "An input does not fit.",
    "429": "Too many requests are ongoing; Retry-After says when to come again.", "500": "A stage has failed.",
    "503": "The service is stopping, or a stage cannot be started again.", "504": "There was no result in time.",
}  # fmt: skip


def description(name: str, version: str, ports: Ports, safetensors: str, seconds: float) -> dict[str, Any]:
    """The OpenAPI document of a service.

    Args:
        name: of the graph.
        version: of toprope.
        ports: of the graph.
        safetensors: media type of safetensors files.
        seconds: the longest deadline.
    """
    body: dict[str, Any] = {
        "type": "object", "required": list(ports.inputs), "additionalProperties": False,
        "properties": {key: _input(each) for key, each in ports.inputs.items()},
    }  # fmt: skip
    result: dict[str, Any] = {
        "type": "object", "required": list(ports.outputs),
        "properties": {key: {"description": f"output {key}; a tensor is nested lists"} for key in ports.outputs},
    }  # fmt: skip
    binary = {"type": "string", "format": "binary"}
    answers: dict[str, Any] = {"application/json": {"schema": result}, safetensors: {"schema": binary}}
    if ports.is_stream:
        events = {"type": "string", "description": "server-sent events: result (JSON), then end or error"}
        answers = {
            "text/event-stream": {"schema": events},
            "application/json": {
                "schema": {"type": "object", "properties": {"results": {"type": "array", "items": result}}}
            },
        }
    responses: dict[str, Any] = {"200": {"description": "The result.", "content": answers}}
    for status, text in _ERRORS.items():
        responses[status] = {"description": text, "content": {PROBLEM: {"schema": _PROBLEM}}}
    predict = {
        "summary": f"Run {name} on one input", "operationId": "predict",
        "parameters": [
            {
                "name": "timeout", "in": "query", "required": False,
                "description": "deadline in seconds from the arrival of the request",
                "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": seconds, "default": seconds},
            }
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": body},
                "multipart/form-data": {"schema": _form(ports)},
                safetensors: {"schema": {**binary, "description": f"tensors {', '.join(ports.inputs)}"}},
            },
        },
        "responses": responses,
    }  # fmt: skip
    return {
        "openapi": "3.1.0", "info": {"title": name, "version": version},
        "paths": {
            "/predict": {"post": predict},
            "/healthz": {"get": _simple("Whether the process and its stages work", "503")},
            "/readyz": {"get": _simple("Whether requests are accepted", "503")},
            "/metrics": {"get": _simple("Figures for Prometheus", "")},
        },
    }  # fmt: skip


def _input(port: Input) -> dict[str, Any]:
    text = f"input {port.name}: {port.expected}"
    if not port.is_tensor:
        return {"description": text}
    found: dict[str, Any] = {
        "description": text,
        "anyOf": [{"type": "array", "items": {}}, {"type": "number"}, {"type": "boolean"}, _TENSOR],
    }
    if port.dtype is not None and port.shape is not None:
        found |= {"x-dtype": port.dtype.torch or "string", "x-shape": list(port.shape)}
    return found


def _form(ports: Ports) -> dict[str, Any]:
    return {
        "type": "object", "required": list(ports.inputs),
        "properties": {
            key: {"description": f"input {key}: {each.expected}, as a field or a file"}
            for key, each in ports.inputs.items()
        },
    }  # fmt: skip


def _simple(summary: str, error: str) -> dict[str, Any]:
    responses = {"200": {"description": "Yes." if error else "The figures."}}
    if error:
        responses[error] = {"description": "No."}
    return {"summary": summary, "responses": responses}
