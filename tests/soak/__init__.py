"""A gateway under a fleet that misbehaves, for as long as one likes; `make soak`."""
