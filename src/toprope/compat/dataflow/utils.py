"""The helpers under their own module's name."""

from toprope.flow.utils import generate_deploy_template

__all__ = ["generate_deploy_template"]
