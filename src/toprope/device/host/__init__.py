"""Facts about this machine without torch: Ascend files, npu-smi, installed software, child processes.

Used by `device.doctor`, and by `device.npu` to say why there is no card. Data of the vendor: software.toml,
versions.toml. Tests: tests/device/test_doctor_collect.py, tests/device/test_device_ascend.py.
"""

__all__: list[str] = []
