"""The fitted script as a service of three stages: read the picture, edit it on the card, write a PNG.

    toprope serve graph.py

The model is in the folder that MODEL names. Inputs: picture (bytes of a file), instruction (text).
"""

import io
import os

from PIL import Image, UnidentifiedImageError
from starlette.exceptions import HTTPException

from toprope import flow as df

MODEL = os.path.abspath(os.environ.get("MODEL", "model"))


@df.pyflow
def read(picture):
    """A file as the picture that it is; what is none is the client's error."""
    try:
        return Image.open(io.BytesIO(picture)).convert("RGB")
    except UnidentifiedImageError:
        raise HTTPException(415, f"{len(picture)} bytes that are no picture") from None


@df.pyflow
class Edit:
    """The pipeline, in a process of its own, with its weights in tiers."""

    def __init__(self):
        import fitted

        self.pipeline = fitted.load(MODEL)

    @df.method()
    def run(self, picture, instruction):
        import edit

        return edit.edit(self.pipeline, picture, instruction)


@df.pyflow
def write(picture):
    """A picture as the bytes of a PNG."""
    file = io.BytesIO()
    picture.save(file, "png")
    return file.getvalue()


df.init({})
picture, instruction = df.FlowData(name="picture"), df.FlowData(name="instruction")
edited = Edit.fnode().run(read.fnode()(picture), instruction)
graph = df.FlowGraph([write.fnode().set_alias("edited")(edited)], name="edits")
