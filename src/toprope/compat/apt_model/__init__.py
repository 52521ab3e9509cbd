"""toprope's stand-in for apt_model: the same calls on NPU, CUDA and CPU, through `toprope.device` and `toprope.tiers`.

Importing it changes nothing, prints nothing and asks no device.
"""
