"""Paint a mask: a canvas over a small copy of the picture, with a brush and an eraser, whose strokes become a mask.

It replaces `gr.ImageEditor`, which uploads background, layer and composite again at every change: one click on Edit
took 23 files with Gradio 6.31, of the 256 that the server keeps for all pages.

The page shows the canvas, the controller turns what comes back into a mask. The layer's size and colour must be the
same in the script and in `painted_mask`; `element`, `props` and `watch` in the script are Gradio's. A layer comes from
strangers: it is checked before it is decoded. Tests: tests/images/test_images_painter.py,
tests/images/test_images_texts.py.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
from typing import TYPE_CHECKING, Any

from toprope.errors import ImageError, UsageError
from toprope.images.picture.files import open_grey, open_picture, save_picture
from toprope.images.web.texts import LANGUAGES, Words

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CSS", "HTML", "SIDE", "painted_mask", "script", "shown_copy"]

SIDE = 768
"""The longer side of the copy that is painted on, in pixels."""

LEAST = 384
"""The longer side of the copy of a smaller picture, on which strokes have room."""

MOST = 2**19
"""Letters of a painted layer at most: one of `SIDE` with 6000 strokes has a fifth of it."""

PNG = "data:image/png;base64,"

AGAIN = "clear the mask and paint it again"

HTML = """
<div class="painter">
  <div class="painter-tools" role="toolbar">
    <button type="button" class="paint" aria-pressed="true">Brush</button>
    <button type="button" class="erase" aria-pressed="false">Eraser</button>
    <label><span class="size">Size</span> <input type="range" class="thick" min="1" max="40" value="8"></label>
    <button type="button" class="wipe">Clear</button>
  </div>
  <div class="painter-stage"><img alt="" draggable="false"><canvas></canvas></div>
</div>
"""

CSS = """
.painter-tools { display: flex; flex-wrap: wrap; gap: 0.4rem 0.6rem; align-items: center; padding-bottom: 0.4rem; }
.painter-tools button { border: 1px solid var(--border-color-primary); border-radius: var(--radius-sm);
  padding: 0.25rem 0.7rem; font-size: 0.85rem; font-weight: 500; min-height: 2rem;
  background: var(--button-secondary-background-fill); }
.painter-tools button[aria-pressed=true] { outline: 2px solid var(--color-accent); }
.painter-tools label { display: flex; align-items: center; gap: 0.4rem; }
.painter-stage { position: relative; width: fit-content; max-width: 100%; margin: 0 auto; line-height: 0; }
.painter-stage img { display: block; max-width: 100%; max-height: 50vh; min-height: 6rem; user-select: none; }
.painter-stage canvas { position: absolute; inset: 0; width: 100%; height: 100%; opacity: 0.55; cursor: crosshair;
  touch-action: none; }
"""

JS = """
const find = name => element.querySelector(name);
const image = find('img'), canvas = find('canvas'), pen = canvas.getContext('2d', {willReadFrequently: true});
let erases = false, last = null, sent = '';
const layer = () => {  // without the soft edges of strokes, which would make the file ten times as large
  const copy = document.createElement('canvas'), wide = canvas.width || 1, high = canvas.height || 1;
  const found = pen.getImageData(0, 0, wide, high), whole = new Uint32Array(found.data.buffer);
  for (let at = 0; at < whole.length; at++) whole[at] = found.data[4 * at + 3] > 127 ? 0xffffffff : 0;
  copy.width = wide;
  copy.height = high;
  copy.getContext('2d').putImageData(found, 0, 0);
  return whole.some(each => each) ? copy.toDataURL('image/png') : '';
};
const tell = () => { sent = layer(); props.value = sent; };
const wipe = () => pen.clearRect(0, 0, canvas.width, canvas.height);
const at = event => {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  return [x * canvas.width / box.width, y * canvas.height / box.height];  // a panorama is shown higher than it is
};
const line = (from, to) => {
  pen.globalCompositeOperation = erases ? 'destination-out' : 'source-over';
  pen.strokeStyle = '#e0372c';
  pen.lineCap = pen.lineJoin = 'round';
  pen.lineWidth = Math.max(2, Number(find('.thick').value) / 100 * Math.min(canvas.width, canvas.height));
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
};
canvas.addEventListener('pointerdown', event => {
  if (event.button || !canvas.width) return;
  canvas.setPointerCapture(event.pointerId);
  last = at(event);
  line(last, last);
});
canvas.addEventListener('pointermove', event => {
  if (!last) return;
  for (const each of event.getCoalescedEvents?.() ?? [event]) { const next = at(each); line(last, next); last = next; }
});
for (const name of ['pointerup', 'pointercancel'])
  canvas.addEventListener(name, () => { if (last) { last = null; tell(); } });
const choose = (wanted) => {
  erases = wanted;
  find('.paint').setAttribute('aria-pressed', String(!erases));
  find('.erase').setAttribute('aria-pressed', String(erases));
};
find('.paint').addEventListener('click', () => choose(false));
find('.erase').addEventListener('click', () => choose(true));
find('.wipe').addEventListener('click', () => { wipe(); tell(); });
image.addEventListener('load', () => {
  if (canvas.width === image.naturalWidth && canvas.height === image.naturalHeight) return;
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  if (sent) tell();
});
const show = () => {
  if (props.picture) { if (image.src !== props.picture) image.src = props.picture; return; }
  image.removeAttribute('src');
  canvas.width = canvas.height = 0;
};
const words = WORDS[FORCED ?? (navigator.language || '').toLowerCase().split('-')[0]] ?? WORDS.en;
for (const [name, key] of [['.paint', 'brush'], ['.erase', 'eraser'], ['.size', 'size'], ['.wipe', 'wipe']])
  find(name).textContent = words[key];
canvas.width = canvas.height = 0;
watch('picture', show);
watch('value', () => { if (!props.value && sent) { sent = ''; wipe(); } });
show();
"""


def script(language: str | None) -> str:
    """The script of the canvas.

    Args:
        language: of its buttons, one of `LANGUAGES`; None for the browser's.
    """
    words = {each: {key: Words(each)(key) for key in ("brush", "eraser", "size", "wipe")} for each in LANGUAGES}
    return f"const WORDS = {json.dumps(words)}, FORCED = {json.dumps(language)};\n{JS}"


def shown_copy(picture: Path) -> str:
    """A small copy of a picture as the address of an image, to be painted on."""
    opened = open_picture(picture).picture
    opened.thumbnail((SIDE, SIDE))
    if (larger := LEAST / max(opened.size)) > 1:
        opened = opened.resize((max(1, round(opened.width * larger)), max(1, round(opened.height * larger))))
    written = io.BytesIO()
    opened.convert("RGB").save(written, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(written.getvalue()).decode()


def painted_mask(layer: Any, size: tuple[int, int], path: Path) -> None:
    """Write a painted layer as a mask in the size of its picture; painted parts may change.

    Args:
        layer: the address of a PNG, as the canvas gives it; its strokes are opaque.
        size: width and height of the picture.
        path: of the mask.

    Raises:
        UsageError: the layer is none, or was painted on a picture of another shape.
    """
    from PIL import Image

    if not isinstance(layer, str) or not layer.startswith(PNG) or len(layer) > MOST:
        raise UsageError("the painted mask is no PNG of a canvas.", do=AGAIN)
    try:
        path.write_bytes(base64.b64decode(layer[len(PNG) :], validate=True))
        painted, _ = open_grey(path, max_pixels=SIDE * SIDE)
    except (binascii.Error, ImageError) as error:
        raise UsageError("the painted mask cannot be read.", do=AGAIN) from error
    wide, high = painted.size
    if abs(wide * size[1] - high * size[0]) > max(size):  # more than the rounding of the smaller copy
        raise UsageError(
            "the mask was painted on a picture of another shape.",
            looked_at=f"the mask {wide} x {high}, the picture {size[0]} x {size[1]} pixels",
            do=AGAIN,
        )
    save_picture(painted.resize(size, Image.Resampling.BICUBIC), path)
