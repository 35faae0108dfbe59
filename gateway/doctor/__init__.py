"""What is wrong between a gateway and its replicas, with the evidence and the exact fix: facts, checks, the answer."""
