"""Estimates of how long a card takes, as ranges: for each operator of a run, and for models on paper.

`record` says what ran, `cost` what that is in operations and bytes, how fast a chip does it and when: the host
launches, streams compute, and both wait for each other. `model` estimates a model from its configuration, and
`measured` takes the rates from a card's own profiles.
"""

__all__: list[str] = []
