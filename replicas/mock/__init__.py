"""A fake engine with a real cache: no model, but blocks, eviction, events, ranks and faults as real engines have them."""
