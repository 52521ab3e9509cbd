"""Training with offloaded weights: gradients, activations, optimizer states and checkpoints in stores.

Internal: users reach it by the `Handle` of an attached model. It knows weights only through `training.weights`.
Tests: tests/tiers/test_tiers_training.py, tests/tiers/test_tiers_training_optimizer.py,
tests/tiers/test_tiers_training_activations.py.
"""

__all__: list[str] = []
