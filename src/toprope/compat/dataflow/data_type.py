"""The dtypes under their own module's name."""

from toprope.flow.data_type import *  # noqa: F403 - a door
from toprope.flow.data_type import __all__ as __all__
