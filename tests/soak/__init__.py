"""A soak: one real server for a long time, under clients of every kind, most of which misbehave.

Rule: the server is `orpheus-ws serve` in a process of its own, and is known from outside alone: by its
sockets, by `/metrics`, and by what the operating system says of the process. Between the rounds everybody
leaves, and then everything that is counted must be as it was; only memory may differ, and must not grow.

    python -m tests.soak --minutes 30 --out DIRECTORY
"""
