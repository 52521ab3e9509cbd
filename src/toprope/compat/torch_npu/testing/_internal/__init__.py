"""Base classes of torch's own distributed tests, on simulated cards."""
