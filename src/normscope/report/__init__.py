"""Pages and figures of results: each result becomes sections, which the page or matplotlib draws."""
