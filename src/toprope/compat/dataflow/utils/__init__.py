"""The helpers under their own module's name."""

from toprope.compat.missing import missing_from
from toprope.flow.utils import generate_deploy_template

__all__ = ["generate_deploy_template"]

__getattr__ = missing_from(__name__)
