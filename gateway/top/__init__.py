"""The fleet at a glance: what `trunkline top` shows, from the control plane's status and receipts."""
