"""KV lifecycle events: bytes from a bus into ordered changes of the index, and the sending side."""
