"""The gateway: request -> tokenize -> match -> choose -> forward -> stream."""
