"""Trainings without a fault, in the development half."""
