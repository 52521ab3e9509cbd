"""Facts about this machine without torch: Ascend files, npu-smi, installed software, child processes."""
