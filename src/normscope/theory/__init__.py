"""Numbers from formulas; no models inside."""
