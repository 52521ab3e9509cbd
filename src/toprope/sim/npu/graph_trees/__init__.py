"""Graph trees: graphs of one card that torch.compile records, in one pool, with checks of which results are in use.

Used by toprope.sim.inductor. They are torch's own (`torch/_inductor/cudagraph_trees.py` of the installed torch), run
with the card's names: `renaming` rewrites its syntax tree, `allocator` has the functions of C++ that it calls, `trees`
puts both together and adds torch_npu's own names. Nothing of torch's text is kept here, so a new torch may need new
rules in `renaming`. Tests: tests/sim/simulated/test_graph_trees.py.
"""
