"""Rating of a dtype on a device, from measurements. Pure.

Called by `cli.output.doctor_text` for the devices that the child process tried. The limit `SLOW` is a free choice; the
verdicts are also in the JSON. Tests: tests/device/test_doctor_collect.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from toprope.device.host.machine import DeviceResult
from toprope.messages import Message

__all__ = ["SLOW", "Rating", "ratings"]

SLOW = 4.0
"""A dtype is slow where a matrix product takes more than this many times float32's time; float64 may take twice."""

_VERDICTS = {"ok": Message("ok"), "slow": Message("slow"), "refused": Message("refused")}


@dataclass(frozen=True)
class Rating:
    """Rating of a dtype.

    Attributes:
        dtype: its name without "torch.".
        verdict: "ok"; "slow" (it works and takes much longer than float32); "refused" (it does not work).
        why: the operator that was refused, or how much slower; empty where it is ok.
    """

    dtype: str
    verdict: str
    why: str = ""

    @property
    def text(self) -> str:
        """The rating as a phrase: "float16 slow (50x float32)"."""
        why = Message(" ({why})", why=self.why) if self.why else ""
        return Message("{dtype} {verdict}{why}", dtype=self.dtype, verdict=_VERDICTS[self.verdict], why=why)


def ratings(device: DeviceResult) -> tuple[Rating, ...]:
    """One rating for each dtype that was tried; time counts only where it was measured, as on no simulated card."""
    plain = next((each.milliseconds for each in device.dtypes if each.dtype == "float32" and each.works), None)
    found = []
    for each in device.dtypes:
        if not each.works:
            found.append(Rating(each.dtype, "refused", each.failed or Message("by the chip")))
        elif plain and each.milliseconds and each.milliseconds > SLOW * plain:
            found.append(Rating(each.dtype, "slow", Message("{times:.0f}x float32", times=each.milliseconds / plain)))
        else:
            found.append(Rating(each.dtype, "ok"))
    return tuple(found)
