"""Refiners: rewrite an instruction before a picture is edited, with a model that may see the picture.

    openai:http://localhost:8000/v1     a server with OpenAI's chat completions, such as vLLM
    openai                              the server of OPENAI_BASE_URL, or OpenAI's own
    local:models/Qwen2.5-VL-3B          a chat model in a folder, with or without vision
    none                                no refiner

Options follow a question mark: `openai:http://localhost:8000/v1?model=qwen&timeout=20&retries=1`,
`local:models/chat?device=npu:1`. A key for the server is read from OPENAI_API_KEY, and is not recorded.

After any failure the user's own instruction is used, and the record has the reason.

Called by `images.engine`. These names are values of `--refiner`, and the fields of `Refinement` are in records: some
may be added, none renamed. A further kind of model is a class with the methods of `provider.Provider`, and a line in
`open_refiner`. Tests: tests/images/test_images_refine.py.
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
"""Label before the description of the result in HiDream-E1's prompts; instructions with it are not refined again."""


@dataclass(frozen=True)
class Refinement:
    """Result of refining an instruction.

    Attributes:
        instruction: the instruction to use, never empty.
        description: description of the result; "" if it was not refined, or the answer had none.
        refined: True if the instruction is not the user's own.
        reason: reason why it was not refined; "" if it was.
        given: the user's instruction.
        provider: facts about the model that was asked, for JSON.
        form: form of the answer, "json" or "lines"; "" without an answer.
        saw_picture: True if the model saw the picture.
        answer: the answer, shortened; "" without one.
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
        """All attributes for JSON."""
        return dict(vars(self))


class Refiner:
    """Rewrites instructions; after a failure it returns the user's own."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def describe(self) -> dict[str, Any]:
        """Facts about the model that is asked, for JSON."""
        return self.provider.describe()

    def refine(self, picture: Image, instruction: str) -> Refinement:
        """Rewrite an instruction.

        Args:
            picture: the input picture, RGB.
            instruction: the user's instruction, not empty.
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
        """Release the provider's resources."""
        self.provider.close()


def open_refiner(name: str) -> Refiner | None:
    """Open the refiner with a name as above; None for "none".

    Raises:
        UsageError: the provider is unknown, or has no such option.
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
        f"there is no refiner {name!r}.",
        do="give openai:URL, local:FOLDER or none",
    )


def _read(options: dict[str, str], kinds: dict[str, type], name: str) -> dict[str, Any]:
    """Read the options of a refiner's name in their types."""
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
