"""The dtypes under their own module's name."""

from toprope.compat.missing import missing_from
from toprope.flow.data_type import *  # noqa: F403 - a door
from toprope.flow.data_type import __all__ as __all__

__getattr__ = missing_from(__name__)
