"""What would happen to a request and why, without sending it anywhere: the answer, its JSON, its table."""
