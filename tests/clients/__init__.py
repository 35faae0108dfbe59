"""Other people's clients, unchanged, against a gateway and fake engines; `make clients`."""
