"""Our own engine: blocks, scheduler, model, server. Importing this package, `blocks` or `schedule` does not import torch."""
