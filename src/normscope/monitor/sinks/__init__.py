"""Sinks store the records of a Monitor while training runs."""
