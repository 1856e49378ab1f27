"""Numbers from formulas; no models inside.

`printed` is the mean-field theory of seed 002 as it stands in print.
"""
