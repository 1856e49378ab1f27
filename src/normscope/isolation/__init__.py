"""Isolation: a measurement works on copies of model, batch, loss and optimizer, and everything is put back after it."""
