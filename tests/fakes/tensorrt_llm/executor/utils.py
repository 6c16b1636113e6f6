"""As in the real one."""


class RequestError(RuntimeError):
    """One request has failed."""
