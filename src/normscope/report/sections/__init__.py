"""One file for each kind of result: it turns plain JSON into verdicts, charts and tables."""
