"""Scripts that drive real clients. Each runs in an environment of its own and imports nothing of ours."""
