"""Package `torch_npu.npu._npugraph_handlers`: see npugraph_handler, its one module."""
