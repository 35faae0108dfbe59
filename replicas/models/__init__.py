"""Model families on plain torch, one a file; `load` finds and builds the one a name or folder means."""
