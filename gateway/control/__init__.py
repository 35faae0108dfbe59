"""The control plane: metrics, health, receipts, administration; an aiohttp application on its own port."""
