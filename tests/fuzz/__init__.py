"""Fuzzing: any bytes at all, and what must hold whatever they are.

Rule: a target is a file in `targets` with a function `one`, which takes bytes and raises if something
does not hold; what it checks says its docstring. Inputs are scripts that a person can write, and those in
`corpus/NAME` were. `tests/test_fuzz_corpus.py` replays them in every run of the tests;
`python -m tests.fuzz NAME` looks for others, guided by what they reach in our code.
"""
