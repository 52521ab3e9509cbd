"""A stack of levels: tensors by key, moved between devices, the host and a disk by a caching policy."""

__all__: list[str] = []
