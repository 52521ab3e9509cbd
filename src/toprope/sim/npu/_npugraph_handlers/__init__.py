"""Handlers of operators whose arguments on the host change between replays of a graph, under torch_npu's name."""
