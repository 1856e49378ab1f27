"""The Monitor where people already train: import `homes.lightning` or `homes.transformers`."""
