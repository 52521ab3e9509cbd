"""Conditions on CUDA and on devices: what they guard, and whether their answer may change.

Called by `port.engine` after the rules have found their places, and before anything is edited.
"""

__all__: list[str] = []
