"""Plans for updates of captured calls, as Inductor of torch_npu writes them into compiled code."""
