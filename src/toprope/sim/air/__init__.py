"""torchair's scopes: operators of torch.ops.air that mark where one begins and ends, and their context managers."""

__all__: list[str] = []
