"""How results are shown: aligned plain text for terminals, small HTML for notebooks."""
