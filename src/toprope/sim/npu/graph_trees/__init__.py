"""Graph trees: graphs of one card that torch.compile records, in one pool, with checks of what is alive.

They are torch's own (`torch/_inductor/cudagraph_trees.py` of the installed torch), run with the card's names:
`renaming` rewrites its syntax tree, `allocator` has the functions of C++ that it calls, `trees` puts both together and
adds what torch_npu has besides. Nothing of torch's text is kept here.
"""
