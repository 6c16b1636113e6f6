"""Benchmarks: what parts of the program cost, against a baseline that is measured beside them.

Rule: machines are noisy, so a figure is only worth its ratio to the baseline of the same run. A server
that is measured runs in a process of its own and is measured from outside: CPU time by the operating
system, lateness and underruns by the clients. What is called is measured where it is called, in turns
with its baseline. Engines, decoders and clocks that are simulated are called so.
"""
