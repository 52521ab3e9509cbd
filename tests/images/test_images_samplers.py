"""Samplers: another scheduler for one edit, and the model's own back afterwards; texts that are longer than is read.

Holds `images.samplers` and `images.truncation`; the measure is diffusers' own scheduler.
"""

import pytest

from images_tiny import QUIET, picture, tiny
from toprope.errors import UsageError
from toprope.images import EditRequest, Engine
from toprope.images.families import families, named
from toprope.images.request import SAMPLERS
from toprope.images.truncation import Reader, truncated

pytestmark = QUIET
CAT = picture(48, 48)


def asked(instruction="make it snow", **knobs):
    return EditRequest(CAT, instruction, steps=3, seed=3, max_pixels=1024, **knobs)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["ip2p", "ip2p-xl", "kontext", "hidream-e1"])
def test_every_sampler_of_a_family_gives_a_picture_of_its_own_and_goes_again(family) -> None:
    with Engine.open(tiny(family), device="cpu", dtype="fp32") as engine:
        own = engine.loaded.pipeline.scheduler
        base = engine.edit(asked()).pictures[0].tobytes()
        made = {}
        for name in engine.family.samplers:
            steps = []
            result = engine.edit(asked(sampler=name), on_step=steps.append)
            assert [each.number for each in steps] == [1, 2, 3], name
            assert result.record["request"]["sampler"] == name
            assert engine.loaded.pipeline.scheduler is own
            made[name] = result.pictures[0].tobytes()
        # that which is the model's own gives the same picture, all others another
        kind = type(own).__name__
        same = {name for name, (cls, _) in engine.family.samplers.items() if cls == kind}
        assert {name for name, each in made.items() if each == base} == same
        assert len(set(made.values())) == len(made)
        assert engine.edit(asked()).pictures[0].tobytes() == base


def test_samplers_are_known_by_name_before_anything_is_loaded() -> None:
    assert {name for family in families() for name in family.samplers} == set(SAMPLERS)
    with pytest.raises(UsageError, match=r"family kontext have no sampler 'ddim'") as caught:
        named("kontext").refuse(asked(sampler="ddim"))
    assert "euler, lcm, unipc" in caught.value.looked_at
    with pytest.raises(UsageError, match="sampler is 'best', and must be one of ddim"):
        asked(sampler="best").validate()


# ---- texts that are cut


class Words:
    """A tokenizer whose tokens are words, with a mark at the end."""

    def __init__(self, fast):
        self.is_fast = fast

    def __call__(self, text, *, truncation, max_length=10**9, return_offsets_mapping=False):
        spans, at = [], 0
        for word in text.split():
            at = text.index(word, at)
            spans.append((at, at + len(word)))
            at += len(word)
        spans = spans[: max_length - 1] if truncation else spans
        found = {"input_ids": [*(text[start:end] for start, end in spans), "</s>"]}
        return found | ({"offset_mapping": [*spans, (0, 0)]} if return_offsets_mapping else {})

    def decode(self, ids, *, skip_special_tokens):
        return " ".join(each for each in ids if each != "</s>")


def test_what_a_text_encoder_does_not_read_is_said() -> None:
    readers = [Reader("CLIP", Words(True), 4), Reader("CLIP", Words(True), 4), Reader("T5", Words(True), 6)]
    assert truncated(readers, "one two three", "instruction") == []
    assert truncated(readers, "", "negative") == []
    assert truncated(readers, "one two  three four five six", "instruction") == [
        "the instruction is too long for CLIP, which reads 4 tokens. Not read: 'four five six'",
        "the instruction is too long for T5, which reads 6 tokens. Not read: 'six'",
    ]
    (long,) = truncated(readers[:1], "a b c " + "x" * 1000, "negative")
    assert len(long) < 400


@pytest.mark.slow
@pytest.mark.parametrize("family", ["ip2p", "ip2p-xl", "kontext", "hidream-e1"])
def test_a_cut_instruction_is_a_notice_and_what_was_cut_changes_nothing(family) -> None:
    long = "make it snow " + "and snow " * 200
    with Engine.open(tiny(family), device="cpu", dtype="fp32") as engine:
        assert engine.edit(asked()).record["notices"] == []
        notices = engine.edit(asked(long)).record["notices"]
        assert any("the instruction is too long for CLIP" in each for each in notices)
        changed = engine.edit(asked(long + "and rain")).pictures[0].tobytes()
        assert changed == engine.edit(asked(long)).pictures[0].tobytes()  # it was not read
