"""Tools that are started with `python -m dataflow.tools...`."""
