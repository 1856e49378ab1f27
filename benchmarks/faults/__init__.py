"""NormFaults: trainings with a known fault of normalization, and trainings with none."""
