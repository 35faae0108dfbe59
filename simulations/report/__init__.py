"""What a person or a program gets to see of a run: figures, a table, one JSON object, one plot."""
