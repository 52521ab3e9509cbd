"""A Ray cluster: joined or started for a session, and kept by `toprope start`, `status` and `stop`."""
