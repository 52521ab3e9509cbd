"""`apt_model.optimization`: see `npu_backend`, `vgpu_stack` and `vb_global`, which is imported by name only."""
