"""`make demo`: two real replicas, the gateway, three users' chats under two policies, side by side."""
