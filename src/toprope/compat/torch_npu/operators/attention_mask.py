"""Masked scores of npu_fusion_attention: what each sparse mode leaves out, and which masks are accepted.

Used by fusion_attention_call.py, inference_attention.py and nsa.py. Tests: tests/compat/test_npu_fusion_attention.py
has every mode.

Positions are counted by diagonals: the score of query i and key j lies on diagonal j - i, seen from the upper left
corner. Modes 3 and 4 count from the lower right corner, which shifts the diagonal by Skv - Sq.

The modes 2, 3 and 4 take one compressed mask of 2048 x 2048 whatever the lengths are. As on the card its contents are
read: the mask says for every diagonal whether it is masked, so a mask the wrong way round gives a wrong result here as
well. Numbers of modes and shapes of masks are the kernel's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .checks import refuse

__all__ = ["COMPRESSED", "Sparse", "check_mask", "masked_scores"]

COMPRESSED = 2048
"""Rows and columns of the compressed mask of modes 2, 3 and 4."""

_OPERATOR = "npu_fusion_attention"
_DEFAULT, _ALL, _LEFT_UP, _RIGHT_DOWN, _BAND = range(5)


@dataclass(frozen=True)
class Sparse:
    """The sparse mode of one call, with the borders of the band that modes 0 and 4 compute.

    Attributes:
        mode: 0 default, 1 whole mask, 2 causal from the upper left, 3 causal from the lower right, 4 band.
        before: keys before the diagonal that are computed (pre_tockens).
        after: keys after the diagonal that are computed (next_tockens).
    """

    mode: int
    before: int
    after: int

    @property
    def compressed(self) -> bool:
        """Return True if the mask is the compressed one."""
        return self.mode in (_LEFT_UP, _RIGHT_DOWN, _BAND)

    def shift(self, queries: int, keys: int) -> int:
        """Diagonal, seen from the upper left, that counts as the main one."""
        return keys - queries if self.mode in (_RIGHT_DOWN, _BAND) else 0

    def leaves_rows_empty(self, queries: int, keys: int) -> bool:
        """Return True if the kernel expects rows without any score, and then writes zeros for them."""
        if self.mode == _RIGHT_DOWN:
            return queries > keys
        if self.mode in (_DEFAULT, _BAND):
            before, after = self._from_upper_left(queries, keys)
            return before < queries - keys or after < 0
        return False

    def check_band(self, queries: int, keys: int) -> None:
        """Refuse a band that holds no score.

        Raises:
            RuntimeError: the band of mode 0 or 4 is empty.
        """
        if self.mode not in (_DEFAULT, _BAND):
            return
        before, after = self._from_upper_left(queries, keys)
        if (before < 0 and (after < -before or -before >= keys)) or (
            after < 0 and (before < -after or -after >= queries)
        ):
            refuse(
                _OPERATOR,
                f"pre_tockens {self.before} and next_tockens {self.after} leave nothing to compute "
                f"for {queries} queries and {keys} keys",
            )

    def _from_upper_left(self, queries: int, keys: int) -> tuple[int, int]:
        shift = self.shift(queries, keys)
        return self.before - shift, self.after + shift


def check_mask(mask: torch.Tensor, sparse: Sparse, shapes: list[list[int]]) -> None:
    """Refuse a mask whose dtype or shape the kernel does not take.

    Args:
        mask: atten_mask of the call.
        sparse: the sparse mode of the call.
        shapes: the shapes that an uncompressed mask may have.

    Raises:
        RuntimeError: wrong dtype or shape.
    """
    if mask.dtype not in (torch.bool, torch.uint8):
        refuse(_OPERATOR, f"atten_mask is {mask.dtype}; the kernel takes bool and uint8")
    if sparse.compressed:
        if list(mask.shape) != [COMPRESSED, COMPRESSED]:
            refuse(
                _OPERATOR,
                f"sparse_mode {sparse.mode} takes the compressed atten_mask, {COMPRESSED} x {COMPRESSED} with True "
                f"above the diagonal, but got {list(mask.shape)}",
            )
    elif list(mask.shape) not in shapes:
        known = ", ".join(str(shape) for shape in shapes)
        refuse(_OPERATOR, f"atten_mask has shape {list(mask.shape)}; these inputs take {known}")


def masked_scores(mask: torch.Tensor, sparse: Sparse, queries: int, keys: int) -> torch.Tensor:
    """Find the scores that are left out.

    Args:
        mask: the compressed mask, or the mask of these queries and keys; True or non-zero leaves a score out.
        sparse: the sparse mode of the call.
        queries: number of queries.
        keys: number of keys.

    Returns:
        a bool tensor that broadcasts to [B, N, queries, keys]; True is left out.
    """
    if sparse.mode == _ALL:
        return mask.bool()
    columns = torch.arange(keys, device=mask.device)
    rows = torch.arange(queries, device=mask.device)
    diagonal = columns - rows[:, None] - sparse.shift(queries, keys)
    if sparse.mode == _DEFAULT:
        # The kernel skips what lies outside the band, whatever the mask says there.
        return mask.bool() | (diagonal > sparse.after) | (diagonal < -sparse.before)
    by_diagonal = _by_diagonal(mask.bool())
    if sparse.mode == _BAND:
        behind = ~_look_up(by_diagonal, diagonal + sparse.before + 1)
        return _look_up(by_diagonal, diagonal - sparse.after) | behind
    return _look_up(by_diagonal, diagonal)


def _by_diagonal(mask: torch.Tensor) -> torch.Tensor:
    """The compressed mask as one value for each diagonal, from the lower left corner to the upper right."""
    return torch.cat((mask[1:, 0].flip(0), mask[0]))


def _look_up(by_diagonal: torch.Tensor, diagonal: torch.Tensor) -> torch.Tensor:
    return by_diagonal[(diagonal + COMPRESSED - 1).clamp(0, 2 * COMPRESSED - 2)]
