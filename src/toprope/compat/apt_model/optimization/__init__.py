"""Package `apt_model.optimization` of the apt_model facade.

Nothing is imported here: importing `vb_global` may enable a mode, so a program names the module that it wants. Tests:
tests/compat/test_apt_vb_global.py, and one file for each other module.
"""
