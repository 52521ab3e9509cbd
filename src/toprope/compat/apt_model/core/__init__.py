"""`apt_model.core`: see `system`."""
