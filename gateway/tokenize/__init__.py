"""Text into the engine's own token ids: chat template, encoder, and the proof that both agree."""
