"""Families of editing models, a file or a sub-package each; `find` picks one by a model's folder.

Callers outside import from here. How to add a family: see `base`. Tests: tests/images/test_images_engine.py.
"""

from toprope.images.families.base import Family, Native, OnStep, Prompt
from toprope.images.families.finding import families, find, named

__all__ = ["Family", "Native", "OnStep", "Prompt", "families", "find", "named"]
