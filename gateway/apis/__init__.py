"""The APIs that are served: paths, prompts, counts, ends of streams, shapes of errors."""
