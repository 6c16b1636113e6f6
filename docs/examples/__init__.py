"""Programs to begin with: each is one file, is typed, and is run by `tests/test_examples.py`."""
