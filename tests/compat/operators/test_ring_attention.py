"""npu_ring_attention_update against attention over all keys at once.

Holds ring_attention.py in src/toprope/compat/torch_npu/operators.
"""

import pytest
import torch

HEADS, WIDTH, SCALE = 2, 64, 0.3


def attention(query, key, value):
    """[Sq, N, D], [Sk, N, D] in float64: the result, and the maximum and the sum of the softmax [Sq, N]."""
    scores = torch.einsum("ind,jnd->inj", query, key) * SCALE
    largest = scores.amax(-1)
    weights = torch.exp(scores - largest[..., None])
    total = weights.sum(-1)
    return torch.einsum("inj,jnd->ind", weights, value) / total[..., None], largest, total


def parts(tokens):
    """The results over the first keys, over the others, and over all."""
    query, key, value = (torch.randn(rows, HEADS, WIDTH, dtype=torch.float64) for rows in (tokens, 7, 7))
    return [attention(query, key[rows], value[rows]) for rows in (slice(0, 3), slice(3, 7), slice(0, 7))]


def stored(statistic):
    return statistic.float()[..., None].repeat_interleave(8, -1)


def close(found, wanted, tolerance=1e-5):
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_sbh(facade, dtype, tolerance):
    batches = [parts(4) for _ in range(3)]

    def given(part):
        outs, largest, total = (torch.stack([batch[part][which] for batch in batches]) for which in range(3))
        out = outs.transpose(0, 1).flatten(2).to(dtype)  # [S, B, H]
        return out, stored(largest.transpose(1, 2)), stored(total.transpose(1, 2))

    found = facade.npu_ring_attention_update(*given(0), *given(1))
    assert [each.dtype for each in found] == [dtype, torch.float32, torch.float32]
    for have, want in zip(found, given(2), strict=True):
        close(have, want, tolerance)


@pytest.mark.parametrize("layout", ["TND", "SBH", ""])
def test_tnd(facade, layout):
    """Statistics by tokens, or those of each sequence as [N, S]."""
    lengths = [2, 3]
    sequences = [parts(length) for length in lengths]

    def given(part):
        out = torch.cat([sequence[part][0] for sequence in sequences]).float()
        if layout == "TND":
            found = [torch.cat([sequence[part][which] for sequence in sequences]) for which in (1, 2)]
        else:
            found = [
                torch.cat([sequence[part][which].t().reshape(-1) for sequence in sequences]).reshape(-1, HEADS)
                for which in (1, 2)
            ]
        return out, *(stored(each) for each in found)

    options = {"actual_seq_qlen": torch.tensor([0, 2, 5]), "input_layout": "TND", "input_softmax_layout": layout}
    found = facade.npu_ring_attention_update(*given(0), *given(1), **options)
    for have, want in zip(found, given(2), strict=True):
        close(have, want)


def test_refuses(facade):
    out, statistic = torch.randn(4, 2, 32), torch.rand(2, 2, 4, 8)
    tokens, by_token, ends = torch.randn(5, 2, 64), torch.rand(5, 2, 8), torch.tensor([0, 5])

    def call(prev=out, cur=out, statistics=statistic, last=None, **options):
        last = statistics if last is None else last
        return facade.npu_ring_attention_update(prev, statistics, statistics, cur, statistics, last, **options)

    tnd = {"prev": tokens, "cur": tokens, "statistics": by_token, "input_layout": "TND"}
    for arguments, text in (
        ({"input_layout": "BSH"}, "input_layout only supports 'SBH' or 'TND', but got BSH"),
        ({"input_softmax_layout": "BNS"}, "input_softmax_layout only supports"),
        ({"cur": out[1:]}, "must have the same shape"),
        ({"cur": out.half()}, "must have the same dtype"),
        ({"prev": out.double(), "cur": out.double()}, "only supports float16, float32 or bfloat16"),
        ({"last": statistic[1:]}, "must keep the same shape"),
        ({"statistics": statistic.half()}, "must use float32"),
        ({"statistics": statistic[..., :1]}, "last dimension to be 8"),
        ({"prev": out[0], "cur": out[0]}, "must be a 3D tensor, but got 2D"),
        ({"statistics": statistic[0]}, "must be 4D when input_layout is 'SBH'"),
        ({"statistics": statistic[:, :, 1:]}, r"wants \[B, N, S, 8\]"),
        (tnd, "actual_seq_qlen is required"),
        ({**tnd, "actual_seq_qlen": ends.int()}, "must use int64"),
        ({**tnd, "actual_seq_qlen": ends, "statistics": statistic}, "must be 3D when input_layout is 'TND'"),
        ({**tnd, "actual_seq_qlen": ends, "statistics": by_token[1:]}, r"wants \[T, N, 8\]"),
        ({**tnd, "actual_seq_qlen": torch.tensor([2, 5])}, "must rise from 0 to the number of tokens, 5"),
        ({**tnd, "actual_seq_qlen": ends, "prev": tokens[..., :32], "cur": tokens[..., :32]}, "2 heads of 32"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call(**arguments)


def test_shapes_without_values(facade):
    tokens, by_token = torch.empty(5, 2, 64, device="meta"), torch.empty(5, 2, 8, device="meta")
    given = tokens, by_token, by_token
    ends = torch.empty(3, dtype=torch.int64, device="meta")
    found = facade.npu_ring_attention_update(*given, *given, actual_seq_qlen=ends, input_layout="TND")
    assert [each.shape for each in found] == [tokens.shape, by_token.shape, by_token.shape]
