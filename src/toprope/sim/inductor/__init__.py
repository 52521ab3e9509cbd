"""torch.compile on the simulated card with torch's own backends; the vendor's are in toprope.sim.graph.

`registration.register` is called when the card is installed. Tests: tests/sim/simulated/test_inductor.py.
"""

__all__: list[str] = []
