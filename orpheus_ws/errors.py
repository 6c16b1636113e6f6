"""Every error of the project, in one tree.

Rule: an error carries its wire code, the close code it brings with it (if it ends the socket) and
whether trying again can help. Its text is written by us, says what to do, and is sent to clients as
it stands: it never contains the user's words, a key, or the text of another exception. Exceptions
of other libraries are translated where they enter and go no further.

    OrpheusError
    ├── PeerError            the other side did something it should not
    │   ├── BadMessage       bad_message; the socket lives
    │   ├── Undecodable      bad_message, close 1007
    │   ├── WrongFrameKind   bad_message, close 1003
    │   ├── Unworkable       bad_message, close 1008
    │   ├── MessageTooBig    bad_message, close 1009
    │   ├── UnknownVoice     unknown_voice
    │   ├── UnsupportedFormat unsupported_format
    │   ├── TextTooLong      text_too_long
    │   ├── ContextLimit     context_limit
    │   ├── RateLimited      rate_limited
    │   └── SlowConsumer     slow_consumer, close 1008
    ├── ServiceError         we could not do what was asked
    │   ├── Overloaded       overloaded
    │   ├── NoAudio          no_audio
    │   ├── EngineFailed     engine_failed
    │   └── Internal         internal
    ├── PeerGone             the other side has left; never on the wire
    ├── StartupError         the process cannot start: configuration, a missing extra, a bad file
    ├── BenchFailed          a benchmark did not come to a figure
    └── ClientError          raised by the client SDK; these codes are never on the wire
        ├── Unreachable      unreachable: no server answered, or it went away before it greeted
        ├── Refused          refused: the handshake was (status, reason, retry_after)
        ├── Disconnected     disconnected: the socket ended before the utterance did
        └── UtteranceFailed  the server answered `error` (its code, retryable)
"""


def unreadable(error: OSError, otherwise: str) -> str:
    """Why a file cannot be read and what to do: let this user read it, or `otherwise`."""
    advice = "let this user read it" if isinstance(error, PermissionError) else otherwise
    return f"({error.strerror}): {advice}"


class OrpheusError(Exception):
    """Base of the tree. `str(error)` is safe to send to a client."""

    code: str = "internal"
    close_code: int | None = None
    retryable: bool = False

    def __init__(self, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        """How long to wait before trying again, where that is known."""

    def __reduce__(self) -> tuple[object, ...]:
        # Python would make a copy, as for another process, from the text alone, which some refuse.
        return _bare, (type(self), self.args), self.__dict__


def _bare(kind: type[OrpheusError], args: tuple[object, ...]) -> OrpheusError:
    return kind.__new__(kind, *args)


class PeerError(OrpheusError):
    """The other side's fault."""


class BadMessage(PeerError):
    """A message that decodes but is not one of ours.

    `context` is there when it was an `open`: what the context was to be is not known, so it cannot
    be opened. It is also there when it was a `cancel`, which `cancels` tells.
    """

    code = "bad_message"

    def __init__(self, message: str, *, context: str | None = None, cancels: bool = False) -> None:
        super().__init__(message)
        self.context = context
        self.cancels = cancels


class Undecodable(BadMessage):
    """Bytes that are not msgpack or JSON at all."""

    close_code = 1007


class WrongFrameKind(BadMessage):
    """A text frame where the protocol has binary ones, or the reverse."""

    close_code = 1003


class Unworkable(BadMessage):
    """A message that the rest of its protocol depends on: nothing can follow it."""

    close_code = 1008


class MessageTooBig(BadMessage):
    """A message over `limits.message_bytes`."""

    close_code = 1009


class UnknownVoice(PeerError):
    """The engine has no such voice."""

    code = "unknown_voice"


class UnsupportedFormat(PeerError):
    """An encoding or a sample rate that `ready` did not offer."""

    code = "unsupported_format"


class TextTooLong(PeerError):
    """More unspoken text than `limits.text_chars`, or more than the tenant may ever send at once."""

    code = "text_too_long"


class ContextLimit(PeerError):
    """More open contexts than `limits.contexts`, or than the tenant may have."""

    code = "context_limit"
    retryable = True


class RateLimited(PeerError):
    """More of something than may wait at once, or more text than the tenant may send in a minute."""

    code = "rate_limited"
    retryable = True


class SlowConsumer(PeerError):
    """The peer stopped reading while audio was due."""

    code = "slow_consumer"
    close_code = 1008


class ServiceError(OrpheusError):
    """Our fault."""


class Overloaded(ServiceError):
    """No room now."""

    code = "overloaded"
    retryable = True


class NoAudio(ServiceError):
    """The engine produced no frame for a segment that has words, twice."""

    code = "no_audio"
    retryable = True


class EngineFailed(ServiceError):
    """The engine raised or died."""

    code = "engine_failed"
    retryable = True


class Internal(ServiceError):
    """Anything else that went wrong on our side."""

    code = "internal"
    retryable = True


class PeerGone(OrpheusError):
    """The other side has closed or was lost, so there is nobody to tell."""

    code = "gone"


class StartupError(OrpheusError):
    """The process cannot start. The text is one line for the operator and says what to change."""


class BenchFailed(OrpheusError):
    """A benchmark did not come to a figure. The text is one line for whoever runs it."""


class ClientError(OrpheusError):
    """Base of what the client SDK raises. `retryable`: the same may work a little later."""

    code = "client"


class Unreachable(ClientError):
    """No server answered where one should be: it is starting, restarting or gone."""

    code = "unreachable"
    retryable = True


class Refused(ClientError):
    """The server refused the handshake.

    `status` is the HTTP status; `reason` the server's word for why (`full`, `busy`, `draining`, `dead`,
    `auth`, `origin`, `path`, `request`, `handshake`, `key_limit`), None if something else answered;
    `retry_after` the seconds it asked to wait, if it named any. What has to do with the moment (408,
    429 and 5xx) is `retryable`; a wrong key, origin or path is not.
    """

    code = "refused"

    def __init__(
        self,
        message: str,
        *,
        status: int,
        reason: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        self.retryable = status in (408, 429) or status >= 500


class Disconnected(ClientError):
    """The socket closed before the utterance was complete. `close_code` as received, or None."""

    code = "disconnected"
    retryable = True

    def __init__(self, message: str, *, close_code: int | None = None) -> None:
        super().__init__(message)
        self.close_code = close_code


class UtteranceFailed(ClientError):
    """The server ended the utterance with `error`; `code`, `retryable` and the wait are the server's."""

    def __init__(
        self, message: str, *, code: str, retryable: bool, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.code = code
        self.retryable = retryable
