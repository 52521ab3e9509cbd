"""`apt_model.optimization`: see its modules; `vb_global` is imported by name only, for that may enable a mode."""
