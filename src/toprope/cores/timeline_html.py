"""A picture of cores with its story as one HTML file that needs nothing else; pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from toprope.cores.timeline import Timeline
from toprope.cores.timeline_svg import svg

__all__ = ["page"]

_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif;max-width:72rem;margin:1.5rem auto;"
    "padding:0 1rem;background:#ffffff;color:#16181d}"
    "pre{white-space:pre-wrap;font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;background:#eef0f3;padding:.8rem;"
    "border-radius:4px}figure{margin:1rem 0;overflow-x:auto}svg{max-width:100%;height:auto}"
    "@media (prefers-color-scheme:dark){body{background:#14161a;color:#f2f3f5}pre{background:#22262d}}"
)


def page(title: str, text: str = "", timelines: Iterable[tuple[str, Timeline]] = (), subtitle: str = "") -> str:
    """The page.

    Args:
        title: its headline, such as the name of the schedule.
        text: the report, as it stands on a terminal.
        timelines: pictures with their headlines.
        subtitle: what the pictures say below their headlines.
    """
    figures = "".join(
        f"<figure>\n{_named(svg(timeline, headline, subtitle=subtitle), number)}</figure>\n"
        for number, (headline, timeline) in enumerate(timelines)
    )
    report = f"<pre>{escape(text)}</pre>\n" if text else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{figures}{report}</body>\n</html>\n"
    )


def _named(picture: str, number: int) -> str:
    """The picture with names that no other picture of the page has."""
    for name in ("title", "description", "part"):
        named = f"{name}{number}"
        picture = picture.replace(f'id="{name}"', f'id="{named}"').replace(f"url(#{name})", f"url(#{named})")
    return picture.replace('="title description"', f'="title{number} description{number}"')
