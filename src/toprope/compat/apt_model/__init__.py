"""Facade of apt_model: the same calls on NPU, CUDA and CPU, through `toprope.device` and `toprope.tiers`.

Programs import it as `apt_model` (toprope.compat.finder serves it). Names, keys and results are those of the package's
specification, whose assertions tests/compat/test_apt_*.py number; what answers them is free. Importing it changes
nothing, prints nothing and asks no device.
"""
