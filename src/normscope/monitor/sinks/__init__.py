"""Sinks: where the records of a Monitor go while training runs."""
