"""Kernels that compute on the host although they are registered for the card: a search of the vendor's C++.

What is looked for are functions that copy a tensor to the host (`.cpu()`, `.to("cpu")`, `.to(at::kCPU)`) and give it
to torch's operator of the same name. A function that only reads a value on the host (lengths, zero points) is not
meant. Where the copy is inside an `if`, the condition is sorted: dtypes, the chip, the installed CANN, or other
arguments.

Called by `__main__`. An "interface" is `acl_op` or `op_api`, see `kernels`; op-plugin has a folder for each. The
patterns follow the style of the vendor's C++ and find no more than that: a kernel that copies in another way counts as
one of the card.

No test runs it. tests/support/test_operators_on_card.py holds the table that comes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from operator_support.kernels import NEW, OLD
from operator_support.repository import Repository

__all__ = ["HostCode", "functions_with_host_code"]

_ROOT = "op_plugin/ops"
_SEARCH = r"\.cpu\(\)|\"cpu\"|kCPU|DeviceType::CPU"
_TO_HOST = re.compile(r"\.cpu\(\)|\.to\(\s*\"cpu\"|\.to\([^;]*?(?:kCPU|DeviceType::CPU)")
_MOVED = re.compile(r"\b(\w+)\s*=\s*(\w+)[^;=]*?(?:\.cpu\(\)|\.to\(\s*\"cpu\"|\.to\([^;]*?kCPU)")
_INLINE = re.compile(r"\b(\w+)\.cpu\(\)")
# A definition at the beginning of a line: a type, a name, its parameters, and the brace that opens the body.
_DEFINITION = re.compile(
    r"^(?!\s|#|//|using|namespace|return|else|if|for|while|TORCH_|struct|class)"
    r"[\w:<>,&\*\s]+?[\s&\*>]\s*(?P<name>\w+)\s*\((?P<parameters>[^;{}]*?)\)\s*(?:const\s*)?\{",
    re.MULTILINE,
)
_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_IS_DTYPE = re.compile(r"==\s*(?:at::|c10::)?(?:ScalarType::|k)(\w+)\b")
_OF_DTYPE = re.compile(r"\b\w+\.(?:scalar_type|dtype)\(\)")


@dataclass(frozen=True)
class HostCode:
    """A function that computes on the host.

    Attributes:
        function: its name in C++.
        parameters: kinds of its parameters ("T" a tensor, "S" a number, "L" a list of tensors, "o" another), in order.
        interface: OLD or NEW.
        path: the file.
        line: number of the line that copies or calls.
        when: "always"; "CANN" where the installed CANN lacks the kernel; "chip" on some chips; "arguments"; or dtypes,
            separated by spaces.
    """

    function: str
    parameters: str
    interface: str
    path: str
    line: int
    when: str


@dataclass(frozen=True)
class _Function:
    name: str
    parameters: str
    names: tuple[str, ...]
    body: str
    start: int


def functions_with_host_code(repository: Repository, commit: str, torch: str) -> list[HostCode]:
    """All functions of op-plugin that compute on the host, of both interfaces, for one torch API ("2.7")."""
    found: list[HostCode] = []
    for path in _sources(repository, commit, torch, _SEARCH):
        found += _of_file(_text(repository, commit, path), _interface(path), path)
    old = {(code.function, code.parameters): code for code in found if code.interface == OLD}
    here = {(code.function, code.parameters) for code in found if code.interface == NEW}
    names = "|".join(sorted({name for name, _ in old}))
    for path in _sources(repository, commit, torch, rf"acl_op::({names})\(") if names else ():
        if _interface(path) == NEW:
            text = _text(repository, commit, path)
            functions = list(_functions(text))
            for one in functions:
                call = re.search(rf"acl_op::({names})\(", one.body)
                code = old.get((one.name, one.parameters)) if call and call[1] == one.name else None
                if call and code is not None and (one.name, one.parameters) not in here:
                    found.append(_at(one, functions, NEW, path, text, call.start(), code.when))
    return found


def _sources(repository: Repository, commit: str, torch: str, pattern: str) -> Iterator[str]:
    """Files of both interfaces; up to 6.0.rc2 there are folders for one torch each."""
    own = "v{}r{}".format(*torch.split("."))
    for path in repository.containing(commit, pattern, _ROOT):
        folders = re.findall(r"/(v\dr\d+)/", path)
        if path.endswith(".cpp") and re.search(r"/(aclops|opapi)/", path) and folders in ([], [own]):
            yield path


def _interface(path: str) -> str:
    return NEW if "/opapi/" in path else OLD


def _text(repository: Repository, commit: str, path: str) -> str:
    """The source without comments; lines stay where they are."""
    return re.sub(r"//[^\n]*", "", repository.text(commit, path))


def _of_file(text: str, interface: str, path: str) -> Iterator[HostCode]:
    """Yield functions of a file that compute on the host, themselves or by a helper of the file."""
    functions = list(_functions(text))
    found: dict[str, HostCode] = {}
    for one in functions:
        copy = _TO_HOST.search(one.body)
        if copy and _computes(one):
            found[one.name] = code = _at(one, functions, interface, path, text, copy.start(), "always")
            yield code
    starts = {(code.function, code.parameters) for code in found.values()}
    for one in functions:  # a kernel that calls a helper of its file
        for name, code in found.items():
            call = re.search(rf"(?<![\w:.]){name}\s*\(", one.body)
            if call and name != one.name and (one.name, one.parameters) not in starts:
                yield _at(one, functions, interface, path, text, call.start(), code.when)
                break


def _functions(text: str) -> Iterator[_Function]:
    for match in _DEFINITION.finditer(text):
        depth, place = 1, match.end()
        while depth and place < len(text):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            place += 1
        parts = list(_split(match["parameters"]))
        names = tuple("".join(re.findall(r"(\w+)\s*(?:=.*)?$", part)) for part in parts)
        kinds = "".join(map(_kind, parts))
        yield _Function(match["name"], kinds, names, text[match.end() : place], match.end())


def _split(parameters: str) -> Iterator[str]:
    depth, part = 0, ""
    for sign in [*parameters, ","]:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            if part.strip():
                yield part
            part = ""
        else:
            part += sign


def _kind(parameter: str) -> str:
    if re.search(r"TensorList|ITensorListRef|List<", parameter):
        return "L"
    if re.search(r"\bTensor\b", parameter):
        return "T"
    return "S" if re.search(r"\bScalar\b(?!Type)", parameter) else "o"


def _core(name: str) -> str:
    return re.sub(r"_(out|outf|symint)$", "", name.strip("_")).strip("_")


def _computes(function: _Function) -> bool:
    """True if its first tensor is moved, and torch's operator of its own name is called: at::NAME() or x_cpu.NAME()."""
    moved = dict(_MOVED.findall(function.body))
    first = function.names[function.parameters.index("T")] if "T" in function.parameters else ""
    if first not in {*moved.values(), *_INLINE.findall(function.body)}:
        return False
    called = re.findall(r"\bat::(?:native::)?(\w+)\s*\(", function.body)
    called += [name for owner, name in re.findall(r"\b(\w+)\.(\w+)\(", function.body) if owner in moved]
    return any(_core(name) and _core(function.name).startswith(_core(name)) for name in called)


def _at(
    function: _Function, functions: list[_Function], interface: str, path: str, text: str, place: int, inner: str
) -> HostCode:
    """The conditions at a place of a function's body; `inner` has those of the helper that is called there."""
    before = function.body[:place]
    line = text.count("\n", 0, function.start + place) + 1
    if "DO_COMPATIBILITY" in re.split(r"[;{}]", before)[-1]:
        when = "CANN"
        rest = function.body[place:].partition(";")[2]
        name = re.match(r"\w+", function.body[place:])
        if name and re.search(rf"\b{name[0]}\s*\(", rest):  # it is called again, under another condition
            when = "arguments"
        return HostCode(function.name, function.parameters, interface, path, line, when)
    conditions = list(_conditions(before))
    if not conditions and re.search(r"\bif\s*\([^{}]*\)\s*\{[^{}]*\breturn\b", before):
        conditions = [" ".join(function.names)]  # what an earlier `if` has left
    sorted_out = {_sort(one, function, functions) for one in conditions} - {"always"}
    when = inner if not sorted_out else sorted_out.pop() if len(sorted_out) == 1 and inner == "always" else "arguments"
    return HostCode(function.name, function.parameters, interface, path, line, when)


def _conditions(before: str) -> Iterator[str]:
    """Conditions of the `if`s whose braces are open at the end of a text."""
    depth = 0
    for position in range(len(before) - 1, -1, -1):
        depth += {"}": 1, "{": -1}.get(before[position], 0)
        if depth < 0:
            depth = 0
            head = before[:position].rstrip()
            found = re.search(r"\bif\s*\((.*)\)$", re.split(r"[;{}]", head)[-1], re.DOTALL)
            if found:
                yield found[1]
            elif head.endswith("else"):
                yield "else"


def _sort(condition: str, function: _Function, functions: list[_Function]) -> str:
    """Sort a condition: dtypes by name, "chip", "cann", or "arguments" for all others."""
    helpers = [one for one in functions if one is not function and re.search(rf"\b{one.name}\s*\(", condition)]
    text = " ".join([condition, *(one.body for one in helpers)])
    if condition == "else":
        return "arguments"
    plain = _OF_DTYPE.sub("", condition)
    if any(re.search(rf"\b{name}\b", plain) for name in function.names if name):
        return "arguments"
    dtypes = [_DTYPES[name] for name in _IS_DTYPE.findall(text) if name in _DTYPES]
    if _OF_DTYPE.search(condition):
        return " ".join(dict.fromkeys(dtypes)) if dtypes and "&&" not in condition and "!=" not in text else "arguments"
    if "SocVersion" in text:
        return "chip"
    return "CANN" if "available" in text or "aclnn" in text else "arguments"
