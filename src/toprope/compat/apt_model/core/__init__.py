"""Package `apt_model.core` of the apt_model facade: its one module is `system`.

Tests: tests/compat/test_apt_system.py.
"""
