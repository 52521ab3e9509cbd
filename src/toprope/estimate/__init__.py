"""Estimates of how long a card takes, as ranges: for each operator of a run, and for models on paper.

`calls` says what ran, `costs` what that is in operations and bytes, `rates` how fast a chip does it, and `timeline`
when: the host launches, streams compute, and both wait for each other.
"""

__all__: list[str] = []
