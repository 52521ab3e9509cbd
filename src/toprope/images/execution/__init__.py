"""Execution on a device: dtype, attention, operators that run on the host, checks of results.

Used by `images.engine` and `images.pipeline_manager`; each module is independent of the others. Tests:
tests/images/test_images_engine.py, tests/images/simulated/test_images_engine.py.
"""

__all__: list[str] = []
