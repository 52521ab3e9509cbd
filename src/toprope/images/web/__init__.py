"""The page of `toprope ui`: a controller that does the work, and Gradio that draws it. No Gradio is imported.

`controller` is the work, `serving` the server, `api` the interface for programs, `page` the drawing. Tests:
tests/images/test_images_web.py.
"""

from toprope.images.web.controller import Controller, Limits, Outcome, Row
from toprope.images.web.serving import Served, serve

__all__ = ["Controller", "Limits", "Outcome", "Row", "Served", "serve"]
