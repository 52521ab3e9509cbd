"""The page of `toprope ui`: a studio that does the work, and Gradio that draws it. Importing it imports no Gradio."""

from toprope.images.web.controller import Limits, Outcome, Row, Studio
from toprope.images.web.serving import Served, serve

__all__ = ["Limits", "Outcome", "Row", "Served", "Studio", "serve"]
