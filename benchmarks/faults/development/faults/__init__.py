"""Trainings with a known fault, in the development half."""
