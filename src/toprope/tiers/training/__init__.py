"""Training with offloaded weights: gradients, activations, optimizer states and checkpoints in stores."""

__all__: list[str] = []
