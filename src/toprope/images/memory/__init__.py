"""The memory ladder: rungs from everything on the device to weights that are streamed, and their placements.

`fallback` has the list of rungs, `placement` the interface, `offload_policies` a class for each rung, `offload` how
one module is moved. `images.pipeline_manager` decides which rung is in use. Tests:
tests/images/simulated/test_images_memory.py, tests/images/test_images_memory.py.
"""

__all__: list[str] = []
