"""Prompt for a model that rewrites instructions, and parser of its answer. Pure: no network, no torch.

The answer may be JSON or three lines. Anything else raises NoAnswer with a reason; a parsed instruction is never empty.

Used by `opening`, and by both providers for the prompt. The words of the prompt are free, but the form of answers that
it asks for must be one that `read_answer` reads; the user's instruction comes last, unchanged. A reason needs its
translation in `images.web.messages`. Tests: tests/images/test_images_refine.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["SYSTEM", "Answer", "NoAnswer", "read_answer", "template"]

SYSTEM = "You help people to edit pictures. You write short, plain English and answer in the form that is asked for."

LONGEST = 2000
"""Largest number of characters of a text in an answer; a model that writes more has not understood the task."""

_TEMPLATE = """\
A picture is going to be changed by an image-editing model. That model takes its instruction literally, knows no \
context, and keeps what it is not asked to change. Word the user's instruction so that it does what the user means.

How to go about it:
1. Look at the picture: what is in it, where, in which style and light.
2. Find out what the user wants to be different, and what of the picture that concerns. If something is named vaguely \
("it", "the thing on the left"), name it by what it is.
3. Write an editing instruction: one sentence in the imperative that names what changes, how, and where. Add nothing \
that the user did not ask for. Numbers, names, colours and texts in quotation marks stay as they are. An instruction \
in another language is written in English; texts that shall appear in the picture are not translated.
4. Write a description of the picture as it will look afterwards: one or two sentences that name the subject, what is \
different now, and what has stayed, such as background, style and light. It must be understood by somebody who has \
seen neither the picture nor the instruction.
5. If the instruction is clear already, keep its words.

Examples of good instructions and descriptions:
- User: "winter". Instruction: "Cover the street, the roofs and the parked cars with fresh snow." \
Description: "A narrow street with parked cars under fresh snow, roofs white, in the same soft evening light."
- User: "get rid of the guy". Instruction: "Remove the man in the red jacket and fill the place with the fence behind \
him." Description: "A wooden fence along a meadow on a clear day, nobody in front of it."
- User: "anime". Instruction: "Turn the photograph into an anime drawing, keep the pose and the composition." \
Description: "An anime drawing of a girl on a bicycle on a country road, with clean outlines and flat bright colours."
- User: 'change text to "OPEN"'. Instruction: "Replace the text on the sign by \\"OPEN\\", in the same lettering." \
Description: "A shop window with a hanging sign that says \\"OPEN\\" in white letters on blue."

Answer with one JSON object and nothing else, without a code fence:
{"caption": "the picture as it is", "instruction": "the editing instruction", "description": "the picture afterwards"}

If you cannot write JSON, answer with exactly three lines, without labels, numbers or empty lines between them: the \
picture as it is, the editing instruction, the description of the picture afterwards.
"""

_UNSEEN = "\nYou cannot see the picture. Rest on the instruction alone, and describe nothing that it does not tell you."


def template(instruction: str, *, seen: bool = True) -> str:
    """Make the prompt for one instruction.

    Args:
        instruction: the user's words, which come last, unchanged, including braces and quotation marks.
        seen: True if the model sees the picture.
    """
    return f"{_TEMPLATE}{'' if seen else _UNSEEN}\nThe user's instruction:\n{instruction}"


@dataclass(frozen=True)
class Answer:
    """A parsed answer.

    Attributes:
        instruction: the rewritten instruction.
        description: description of the result.
        form: "json" or "lines".
    """

    instruction: str
    description: str
    form: str


class NoAnswer(ValueError):  # noqa: N818 - the caller catches it
    """A text has no instruction; the message gives the reason."""


def read_answer(text: str) -> Answer:
    """Parse a model's answer: as JSON, else as three lines.

    Raises:
        NoAnswer: it is neither.
    """
    if not text.strip():
        raise NoAnswer("the answer was empty")
    found = _from_json(text)
    if found is None:
        found = _from_lines(text)
    for name in ("instruction", "description"):
        if len(getattr(found, name)) > LONGEST:
            raise NoAnswer(f"the {name} in the answer has {len(getattr(found, name))} characters")
    return found


def _from_json(text: str) -> Answer | None:
    """Find the last object with an instruction, as models may think aloud before; None if there is none."""
    found = None
    for row in _objects(text):
        named = {str(name).strip().lower().replace(" ", "_"): value for name, value in row.items()}
        instruction = _first(named, ("instruction", "editing_instruction", "edit_instruction"))
        if instruction:
            description = _first(named, ("description", "target_image_description", "target_description"))
            found = Answer(_instruction(instruction), description, "json")
            if not found.instruction:
                found = None
    return found


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Find the outermost JSON objects in a text."""
    decoder, at = json.JSONDecoder(), text.find("{")
    for _ in range(64):
        if at < 0:
            return
        try:
            row, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if isinstance(row, dict):
                yield row
        at = text.find("{", end)


def _first(row: dict[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value.strip():
            return " ".join(value.split())
    return ""


_LABEL = re.compile(
    r"""^[\s>*_#`-]*                                   # marks of lists and of emphasis
    (?:
        line\s*[1-3] \s* (?:[:.)-]|\([^)]*\)\s*:)      # "Line 2:", "Line 2 (instruction):"
      | [1-3] \s* [.):]                                # "2."
    )? [\s*_`]*
    (?:
        (?: (?:editing|edit|refined)\s+instruction | instruction
          | (?:target\s+(?:image\s+)?|image\s+)? description | (?:source\s+(?:image\s+)?|image\s+)? caption )
        [\s*_`]* : [\s*_`]*
    )?""",
    re.IGNORECASE | re.VERBOSE,
)


def _from_lines(text: str) -> Answer:
    """Read an answer of three lines: what the picture shows, the instruction, the description."""
    kept = [line.strip() for line in text.splitlines() if line.strip().strip("`").strip() not in ("", "json", "text")]
    if len(kept) != 3:
        count = f"{len(kept)} line{'' if len(kept) == 1 else 's'}"
        raise NoAnswer(f"the answer was no JSON with an instruction, and {count} instead of three")
    _, instruction, description = (_LABEL.sub("", line, count=1).strip().strip("*_`").strip() for line in kept)
    if not _instruction(instruction):
        raise NoAnswer("the second line of the answer, which is the instruction, was empty")
    return Answer(_instruction(instruction), description, "lines")


def _instruction(text: str) -> str:
    """Strip the quotation marks around a text and the full stop at its end."""
    text = text.strip()
    if (
        len(text) > 1
        and (text[0], text[-1]) in (('"', '"'), ("'", "'"), ("\u201c", "\u201d"))
        and text[0] not in text[1:-1]
    ):
        text = text[1:-1].strip()
    return text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") else text
