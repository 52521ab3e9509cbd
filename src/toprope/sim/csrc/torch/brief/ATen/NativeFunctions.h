// Stands for torch's list of all operators, of which ATen/autocast_mode.h uses none here.
