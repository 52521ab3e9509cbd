"""Theme of the page, with fonts that every machine has, and CSS of our own components.

Used by `web.serving` when it starts Gradio. The identifiers in the CSS are those that `web.page.app` gives its
components, the variables and other classes are Gradio's. Nothing is fetched, and texts keep the contrast of WCAG AA.
Tests: tests/images/test_images_web.py, tests/images/test_images_page.py.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CSS", "DARK", "LIGHT", "theme"]

FONTS = ["system-ui", "Segoe UI", "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "sans-serif"]
MONO = ["ui-monospace", "Consolas", "DejaVu Sans Mono", "monospace"]

LIGHT = {"--good": "#1b7a50", "--bad": "#b8390a"}
DARK = {"--good": "#4fc38f", "--bad": "#f98a5c"}
"""Colours of texts about success and failure, by the mode of the page."""


def _set(colours: dict[str, str]) -> str:
    return "; ".join(f"{name}: {colour}" for name, colour in colours.items())


CSS = f":root {{ {_set(LIGHT)} }} .dark {{ {_set(DARK)} }}"
CSS += """
.tabs button.selected { color: var(--body-text-color) !important; }
.gradio-container { width: 100% !important; max-width: 1360px !important; margin: 0 auto !important;
  padding: 0 1rem !important; }
footer { display: none !important; }
#languages { text-align: right; font-size: 0.86rem; padding-top: 0.3rem; }
#languages a { color: var(--body-text-color-subdued); text-decoration: none; padding: 0.3rem 0.2rem; }
#languages a:hover, #languages a:focus-visible { text-decoration: underline; }
#status { padding: 0.2rem 0; }
#status h1 { display: inline; font-size: 1.25rem; font-weight: 600; margin: 0 1rem 0 0; }
.status { color: var(--body-text-color-subdued); }
.status .dot { display: inline-block; width: 0.6rem; height: 0.6rem; border-radius: 50%; margin-right: 0.5rem; }
.status .dot.ready { background: #2f9e6e; }
.status .dot.loading { background: #d9a21b; }
.bar { height: 0.45rem; border-radius: 0.25rem; background: var(--border-color-primary); overflow: hidden; }
.bar > div { height: 100%; background: var(--color-accent); transition: width 0.2s; }
.bar.memory { margin-top: 0.25rem; }
.progress { min-height: 1.2rem; padding: 0.1rem 0.2rem; font-variant-numeric: tabular-nums; }
.progress > span { display: block; padding-top: 0.3rem; color: var(--body-text-color-subdued); }
.progress[data-state="none"] { visibility: hidden; }
.problem { border-left: 3px solid var(--bad); background: color-mix(in srgb, var(--bad) 8%, transparent);
  padding: 0.5rem 0.8rem; border-radius: 0.3rem; overflow-wrap: anywhere; }
.do { display: inline-block; font-size: 0.8em; padding: 0 0.35rem; border-radius: 0.25rem;
  background: var(--border-color-primary); color: var(--body-text-color); }
.facts { font-size: 0.86rem; font-variant-numeric: tabular-nums; margin: 0 !important; }
.facts, .facts th, .facts td, .facts tr { border: none !important; background: none !important; }
.facts tr + tr th, .facts tr + tr td { border-top: 1px solid var(--border-color-primary) !important; }
.facts { width: 100%; border-collapse: collapse; }
.facts th { text-align: left; font-weight: 500; white-space: nowrap; width: 1%; vertical-align: top;
  color: var(--body-text-color-subdued) !important; padding: 0.22rem 1rem 0.22rem 0.2rem !important; }
.facts td { padding: 0.22rem 0.2rem !important; overflow-wrap: anywhere; }
.facts.rows td:nth-child(-n+2) { white-space: nowrap; padding-right: 1rem !important; width: 1%; max-width: 14rem;
  overflow: hidden; text-overflow: ellipsis; vertical-align: top; }
.facts tr[data-state="failed"] td:nth-child(2) { color: var(--bad); font-weight: 600; }
.facts tr[data-state="done"] td:nth-child(2) { color: var(--good); font-weight: 600; }
.facts tr[data-state="waiting"] td { color: var(--body-text-color-subdued); }
.facts.queue caption { text-align: left; font-weight: 500; padding: 0 0.2rem; }
.facts.queue td:first-child { white-space: nowrap; width: 1%; padding-right: 1rem !important; }
.facts.queue tr[data-owner="yours"] td { font-weight: 600; }
.choices { align-items: center; }
.choices-label { flex: 0 0 auto !important; width: auto !important; min-width: 0 !important;
  color: var(--body-text-color-subdued); }
.choices button { padding-left: 0.3rem; padding-right: 0.3rem; }
.hint { color: var(--body-text-color-subdued); }
span[data-testid="block-info"] { white-space: nowrap; }
input[type=number] { max-width: 3.6rem; }
#masking input[type=number] { max-width: none; padding: 0.4rem; appearance: textfield; }
#files button[aria-label*="emove"], #packed button[aria-label*="emove"] { display: none; }
#editor { display: grid !important; grid-template-columns: minmax(0, 8fr) minmax(20rem, 5fr); gap: 0.8rem 1.2rem;
  align-items: start; }
#left, #right, #view, #ask, #settings, #tree { min-width: 0 !important; }
@media (max-width: 760px) {
  #editor { grid-template-columns: minmax(0, 1fr); }
  #left, #right { display: contents !important; }
  #view { order: 1; } #ask { order: 2; } #tree { order: 3; } #settings { order: 4; }
}
#gallery .grid-wrap { height: auto !important; min-height: 0 !important; max-height: 26rem; }
#gallery .grid-container { grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)) !important; gap: 0.4rem; }
#gallery .thumbnail-lg { aspect-ratio: 1; height: auto; }
#gallery .thumbnail-lg > img { object-fit: contain; }
#gallery .thumbnail-lg:hover .caption-label { opacity: 1; }
#gallery .caption-label { max-width: 100%; left: 0; right: 0; bottom: 0; text-align: left; white-space: normal;
  overflow-wrap: anywhere; line-height: 1.25; font-size: 0.72rem; }
#slider img, #source img { max-height: 70vh; object-fit: contain; }
#source img { width: 100%; min-height: 16rem; }
#hint .html-container, #queue .html-container, #problem .html-container, #note .html-container, #ended .html-container,
#panel .html-container, #status .html-container, #progress .html-container, #progress-all .html-container,
#rows .html-container, #parameters .html-container { padding: 0 !important; }
#panel { border: 1px solid var(--border-color-primary); border-radius: var(--radius-sm); padding: 0.4rem 0.7rem; }
#dice { align-self: stretch; background-repeat: no-repeat; padding-left: 2.3rem; background-position: 0.8rem center;
  background-image: url("data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='20' height='20' \
fill='none' stroke='%238492a6' stroke-width='1.6'%3E%3Crect x='2' y='2' width='16' height='16' rx='3'/%3E%3Cg \
fill='%238492a6' stroke='none'%3E%3Ccircle cx='6.5' cy='6.5' r='1.5'/%3E%3Ccircle cx='13.5' cy='6.5' r='1.5'/%3E\
%3Ccircle cx='10' cy='10' r='1.5'/%3E%3Ccircle cx='6.5' cy='13.5' r='1.5'/%3E%3Ccircle cx='13.5' cy='13.5' r='1.5'/%3E\
%3C/g%3E%3C/svg%3E"); }
"""


def theme() -> Any:
    """The theme for Gradio. It names fonts and fetches none."""
    import gradio as gr

    made = gr.themes.Default(
        primary_hue="teal", neutral_hue="slate", font=FONTS, font_mono=MONO, radius_size="sm", spacing_size="sm"
    )
    # White on the usual teal, and the usual grey on white, have too little contrast to be read by all (WCAG AA).
    fill = {"button_primary_background_fill": "*primary_700", "button_primary_background_fill_hover": "*primary_800"}
    return made.set(
        body_text_color_subdued="*neutral_500", body_text_color_subdued_dark="*neutral_400",
        block_label_text_color="*neutral_600", block_title_text_color="*neutral_600",
        **fill, **{f"{name}_dark": value for name, value in fill.items()},
    )  # fmt: skip
