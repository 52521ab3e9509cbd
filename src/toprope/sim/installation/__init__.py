"""Installation of the simulated cards into the torch of this process; installer.py is the entry.

Tests: tests/sim/test_sim_install.py.
"""

__all__: list[str] = []
