"""Probes of the Monitor: each file measures one quantity in a snapshot."""
