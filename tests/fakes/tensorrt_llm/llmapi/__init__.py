"""As in the real one."""
