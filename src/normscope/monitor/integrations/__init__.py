"""Integrations: the Monitor as a callback of other trainers. Import `integrations.lightning` or `.transformers`."""
