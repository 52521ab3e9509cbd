"""Wording instructions anew before a picture is edited, by a model that may see the picture.

    openai:http://localhost:8000/v1     a server that speaks OpenAI's chat completions, such as vLLM
    openai                              the one of OPENAI_BASE_URL, or OpenAI's own
    local:models/Qwen2.5-VL-3B          a chat model in a folder, with eyes or without
    none                                nobody

Options follow a question mark: `openai:http://localhost:8000/v1?model=qwen&timeout=20&retries=1`,
`local:models/chat?device=npu:1`. A key for the server is taken from OPENAI_API_KEY, and written nowhere.

Whatever goes wrong, the user's own instruction is used, and the record says why.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from toprope.errors import UsageError
from toprope.images.refining.prompt_templates import NoAnswer, read_answer, template
from toprope.images.refining.provider import NotRefined, Provider

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["NotRefined", "Provider", "Refinement", "Refiner", "open_refiner"]


TARGET = "target image description:"
"""What HiDream-E1 is told the result by; who writes this has worded the instruction already."""


@dataclass(frozen=True)
class Refinement:
    """What became of an instruction.

    Attributes:
        instruction: to be used, never empty.
        description: what the picture shall show afterwards; "" where it was not refined, or nothing was said.
        refined: whether the instruction is another's than the user's.
        reason: why it is not; "" where it is.
        given: the user's.
        provider: who was asked, ready for JSON.
        form: "json" or "lines" of the answer; "" without one.
        saw_picture: whether the picture was shown.
        answer: the text that came back, shortened; "" without one.
    """

    instruction: str
    description: str
    refined: bool
    reason: str
    given: str
    provider: dict[str, Any]
    form: str = ""
    saw_picture: bool = False
    answer: str = ""

    def as_json(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return dict(vars(self))


class Refiner:
    """Words instructions anew, and uses the user's where that fails."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def describe(self) -> dict[str, Any]:
        """Who is asked, ready for JSON."""
        return self.provider.describe()

    def refine(self, picture: Image, instruction: str) -> Refinement:
        """Word an instruction anew.

        Args:
            picture: the input, RGB.
            instruction: the user's, not empty.
        """
        provider, given, answer = self.provider, instruction.strip(), ""
        try:
            if TARGET in given.lower():
                raise NotRefined("it has a description of the result already")
            answer = provider.ask(picture, template(given, seen=provider.sees))
            found = read_answer(answer)
        except (NotRefined, NoAnswer) as error:
            return Refinement(given, "", False, str(error), given, self.describe(), answer=answer[:1000])
        return Refinement(
            found.instruction, found.description, True, "", given, self.describe(), found.form, provider.sees,
            answer[:1000],
        )  # fmt: skip

    def close(self) -> None:
        """Give back what the provider holds."""
        self.provider.close()


def open_refiner(name: str) -> Refiner | None:
    """The refiner of a name as above; None for "none".

    Raises:
        UsageError: no such provider, or an option that it does not have.
        WeightsError, PackageError: a local model cannot be loaded.
    """
    if name == "none":
        return None
    kind, _, rest = name.partition(":")
    where, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if kind.partition("?")[0] == "openai":
        from toprope.images.refining.openai import OpenAI

        if not where:
            options = dict(parse_qsl(name.partition("?")[2], keep_blank_values=True))
            where = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        return Refiner(OpenAI(where, **_read(options, {"model": str, "timeout": float, "retries": int}, name)))
    if kind == "local" and where:
        from toprope.images.refining.local import Local

        return Refiner(Local(where, **_read(options, {"device": str, "tokens": int}, name)))
    raise UsageError(
        f"nobody can be found to word instructions anew by the name {name!r}.",
        do="give openai:URL, local:FOLDER or none",
    )


def _read(options: dict[str, str], kinds: dict[str, type], name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in options.items():
        if key not in kinds:
            raise UsageError(
                f"a refiner has no option {key!r}.", looked_at=name, do=f"give {', '.join(kinds)} or leave it out"
            )
        try:
            found[key] = kinds[key](value)
        except ValueError:
            raise UsageError(f"{key} is {value!r}, which is no number.", looked_at=name, do="give one") from None
    return found
