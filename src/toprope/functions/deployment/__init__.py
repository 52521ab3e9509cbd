"""The session of a machine that `toprope start` begins: its options, its state file, and the cards of the machine."""
