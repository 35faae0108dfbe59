"""The compiled room of the index: a token tree in flat memory, worked by Numba functions.

Read `layout` first (where everything lies), then `storing`, `removing` and `reader` (what happens to it), then `compiled` (its
Python face). `radix.plain` is the same tree in plain Python and says what is right.
"""
