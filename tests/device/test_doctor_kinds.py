"""`toprope doctor` on kinds of messages without an entry of their own, and on lines that look like one.

Holds `toprope.codes`; the messages are in helpers/doctor_kinds.py.
"""

import re

import pytest

from doctor_kinds import FULL, KINDS
from toprope.codes import in_log

ROWS = [(code, words, text) for code, words, texts in KINDS for text in texts]

ORDINARY = [
    "INFO 06-03 Using device: npu",
    "Using backend: npu",
    "device npu:0 is used",
    "[INFO] 2025/07/09 20:05:31.842816 1       main.go:193    ascend device plugin starting",
    "I0302 16:55:25.155824  3069 main.go:40] loaded without an error",
    "Some parameters are on the meta device because they were offloaded to the cpu.",
    "CUDA is not available, so that the CPU is used",
    "WARNING 09-25 02:23:09 camem.py:69] Failed to import vllm_ascend_C:No module named 'foo_ext'",
    "INFO: optional part: Failed to import x: No module named 'flash_attn'",
    "Warning: import flash_attn fail, please install FlashAttention to get higher efficiency",
    "W1229 16:43:25.654000 190834 api.py:900] Sending process 2920926 closing signal SIGTERM",
    "fatal: not a git repository (or any of the parent directories): .git",
    "do not panic: it works",
    "    return self.dispatch(func, types, args, kwargs)",
    "step 10, loss 2.1, errors 0, contains information, 12% failed rows",
    "400 Request Header Fields Too Large",
    '  File "/x/transformers/modeling_utils.py", line 3500, in from_pretrained',
    "github.com/koordinator-sh/koordinator/pkg/koordlet.(*informer).run(0x0)",
    "Ascend310P3 found",
]


@pytest.mark.parametrize(("code", "words", "text"), ROWS)
def test_a_text_of_a_kind_has_its_answer_first(code: str, words: tuple[str, ...], text: str) -> None:
    first = in_log(line.encode() for line in text.splitlines())[0].what
    assert first.code == code
    said = "\n".join((first.means, first.reason, *first.causes, *first.try_))
    assert not [word for word in words if word not in said], said
    assert not re.search(r"\{\w*\}", said)


def test_every_kind_has_two_siblings() -> None:
    assert all(len(texts) > 1 for _, _, texts in KINDS)


@pytest.mark.parametrize("line", ORDINARY)
def test_lines_that_look_like_a_kind_are_none(line: str) -> None:
    assert [seen.what.code for seen in in_log([line.encode()] * 3)] == []


def test_a_report_of_another_failure_is_no_refused_value() -> None:
    log = [
        b"ERROR RuntimeError: Worker failed with error 'x', please check the stack trace above for the root cause",
        b"RuntimeError: call failed, error code is 507015",
    ]
    assert [seen.what.code for seen in in_log(log)] == ["507015"]


def test_a_traceback_below_its_message_says_who_raised_it() -> None:
    log = [
        b"[2026-05-11 11:19:09] Error in request: f() missing 1 required positional argument: 'interpolation'",
        b"Traceback (most recent call last):",
        b'  File "/sgl-workspace/sglang/python/sglang/srt/serving_base.py", line 107, in handle',
        b'  File "/sgl-workspace/sglang/python/sglang/srt/tokenizer.py", line 12, in process',
    ]
    said = "\n".join(in_log(log)[0].what.try_)
    assert "srt/tokenizer.py, line 12, in process" in said
    later = [log[0], *[b"INFO"] * 9, *log[1:]]
    assert "tokenizer.py" not in "\n".join(in_log(later)[0].what.try_)


def test_a_frame_of_loading_counts_only_where_memory_ran_out() -> None:
    frame = b'  File "/x/transformers/modeling_utils.py", line 3500, in from_pretrained'
    assert in_log([frame, b"ValueError: x is unknown"])[0].what.code == "python-exception"
    assert [seen.what.code for seen in in_log([frame, FULL.encode()])] == ["memory-loading", "out-of-memory"]
