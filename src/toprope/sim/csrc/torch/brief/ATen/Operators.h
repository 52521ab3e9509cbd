// Replaces torch's list of all operators to save compile time: ATen/autocast_mode.h uses none here. Tests:
// tests/sim/simulated/test_amp.py.
