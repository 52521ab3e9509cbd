"""Dataflow pipelines whose data stays on the device, with the names and the meaning of the dataflow API."""
