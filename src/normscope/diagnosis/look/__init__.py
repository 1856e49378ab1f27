"""The look: what all rules judge from, gathered once from lent copies."""
