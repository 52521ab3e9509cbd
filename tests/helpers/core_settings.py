"""How hard hypothesis tries in the cases of the core, and the sizes it tries."""

import hypothesis
from hypothesis import strategies as st

from core_library import MIB, soak

SETTINGS = hypothesis.settings(
    max_examples=2000 if soak() else 30,
    stateful_step_count=100 if soak() else 50,
    derandomize=not soak(),
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)

SMALL = st.integers(1, 70_000) | st.sampled_from([1, 479, 480, 481, 512, 992, 993, 65_504, 65_505])
MIDDLE = st.integers(65_505, 3 * MIB) | st.sampled_from([MIB - 33, MIB - 32, MIB - 31, MIB, 2 * MIB])
LARGE = st.integers(MIB, 24 * MIB) | st.sampled_from(
    [10 * MIB - 545, 10 * MIB - 544, 10 * MIB - 33, 10 * MIB - 32, 10 * MIB, 20 * MIB - 32, 20 * MIB]
)
