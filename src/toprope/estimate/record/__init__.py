"""What a model would call: its operators on meta tensors, with shapes, bytes of memory and quantised weights."""

__all__: list[str] = []
