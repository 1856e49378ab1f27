"""Experiments that more than one entry reads, or that are too long for their entry's file."""
