"""The test suite; helpers are imported as `tests.<name>`, golden values lie in tests/data."""
