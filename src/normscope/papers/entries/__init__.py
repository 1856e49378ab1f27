"""One file for each figure, theorem or paragraph of a source."""
