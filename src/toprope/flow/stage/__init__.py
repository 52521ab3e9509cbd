"""A stage as data: its specification, its plan for a process, and its status cells."""
