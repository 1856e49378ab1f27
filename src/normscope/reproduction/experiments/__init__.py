"""Experiments that more than one entry reads."""
