"""Benchmarks: what parts of the program cost, against a baseline that is measured beside them.

Rule: machines are noisy, so a figure is only worth its ratio to the baseline of the same run. What is
measured runs in a process of its own and is measured from outside: CPU time by the operating system,
lateness and underruns by the clients. Engines and decoders that are simulated are called so.
"""
