"""Colours of a timeline, for light and dark, and how much text fits; pure."""

from __future__ import annotations

__all__ = ["COLOURS", "STYLE", "fit"]

_LIGHT = ("#9cc9f0", "#f6c08a", "#a9d9a4", "#dcb6ea", "#f3a9ad", "#8fd6d2", "#e6d579", "#c3c3c3")
_DARK = ("#1f5b8f", "#8f5516", "#2e6b34", "#6d3f85", "#8c353c", "#1d6a67", "#6e6110", "#5a5a5a")
COLOURS = len(_LIGHT)
"""How many colours streams have; more streams begin again with the first."""

_CHARACTER = 7.1


def _theme(page: str, ink: str, faint: str, band: str, alarm: str, hatch: str, colours: tuple[str, ...]) -> str:
    fills = "".join(f".s{number}{{fill:{colour}}}" for number, colour in enumerate(colours))
    return (
        f".page,.chip{{fill:{page}}}text{{fill:{ink}}}.small{{fill:{faint}}}.band,.key{{fill:{band};stroke:{faint}}}"
        f".grid{{stroke:{page}}}.tick{{stroke:{faint}}}.block,.without{{stroke:{ink}}}.none{{stroke:{ink}}}"
        f".moment{{stroke:{alarm}}}.arrow{{stroke:{alarm}}}.head,.step{{fill:{alarm}}}.number{{fill:{page}}}"
        f".hatch{{stroke:{hatch}}}.chip{{stroke:{alarm}}}{fills}"
    )


STYLE = (
    "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
    ".title{font-size:17px;font-weight:600}.card{font-size:14px;font-weight:600}.strong{font-weight:600}"
    ".on{pointer-events:none}.number{font-weight:600;font-size:11px}"
    ".band,.key{stroke-width:1}.block{stroke-width:.8}.runs{stroke-width:1.6}.waits{fill-opacity:.6}.small{font-size:12px;font-weight:400}"
    ".partial{stroke-dasharray:5 3}.none{fill:none;stroke-dasharray:3 3}.without{stroke-width:.8}.grid{stroke-width:1}"
    ".moment{stroke-width:2.5}.arrow{fill:none;stroke-width:2}.hatch{stroke-width:1.2;stroke-opacity:.35;fill:none}.chip{stroke-width:1}"
    + _theme("#ffffff", "#16181d", "#50555f", "#eef0f3", "#b3261e", "#16181d", _LIGHT)
    + "@media (prefers-color-scheme:dark){"
    + _theme("#14161a", "#f2f3f5", "#b4bac4", "#22262d", "#ff8a80", "#f2f3f5", _DARK)
    + "}"
)
"""What the classes of the picture look like."""


def fit(text: str, width: float) -> str:
    """As much of a text as fits into so many pixels."""
    most = int(width / _CHARACTER)
    return text if len(text) <= most else text[: max(most - 1, 0)].rstrip(" ,") + "…" if most > 1 else ""
