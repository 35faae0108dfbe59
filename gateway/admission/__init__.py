"""The waiting line in front of the replicas, and what keeps this process itself from collapsing."""
