"""The page of `toprope ui`: a studio that does the work, and Gradio that draws it. Importing it imports no Gradio."""

from toprope.images.web.serving import Served, serve
from toprope.images.web.studio import Limits, Outcome, Row, Studio

__all__ = ["Limits", "Outcome", "Row", "Served", "Studio", "serve"]
