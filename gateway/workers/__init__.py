"""Several processes on one port: `supervise` starts the index process and the workers and keeps them running."""
