"""What the two sides say to each other, as frozen values; the schema of the native protocol.

Rule: one class per message of `docs/protocol.md`, fields named as on the wire, bounds written on the
type. Surfaces for other protocols translate into these, so nothing below them knows a wire format.
A field without a default is always there; others are left out when they have nothing to say.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from orpheus_ws import tokens

ContextId = Annotated[str, Meta(min_length=1, max_length=128)]

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Meta(ge=1, le=2)]
Seed = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MaxTokens = Annotated[int, Meta(ge=7, le=4096)]
MaxDelayMs = Annotated[int, Meta(ge=0, le=5000)]
LeadMs = Annotated[int, Meta(ge=200, le=10_000)]
SegmentMode = Literal["sentence", "clause", "flush"]

MarkId = Annotated[str, Meta(max_length=128)] | Annotated[int, Meta(ge=0, le=2**53 - 1)]
"""What `flush` and `ping` are answered with: text, or a number that every JSON library keeps."""
MAX_PLAYED_MS = 86_400_000
"""A day."""
PlayedMs = Annotated[float, Meta(ge=0, le=MAX_PLAYED_MS)]

TraceParent = Annotated[
    str, Meta(pattern="^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$", max_length=55)
]
"""W3C Trace Context, version 00. It is logged, so it cannot be just any text."""

ALL_CONTEXTS = "*"
"""In `cancel`, instead of a context's id."""


class _Base(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Message(_Base, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


# Client → server ---------------------------------------------------------------------------------


class Sampling(_Base, frozen=True, kw_only=True, omit_defaults=True):
    """How the engine samples; what is left out keeps the socket's default."""

    temperature: Temperature | UnsetType = UNSET
    top_p: TopP | UnsetType = UNSET
    repetition_penalty: RepetitionPenalty | UnsetType = UNSET
    seed: Seed | UnsetType = UNSET
    max_tokens: MaxTokens | UnsetType = UNSET


class Segmentation(_Base, frozen=True, kw_only=True, omit_defaults=True):
    """Where streamed text is cut."""

    mode: SegmentMode | UnsetType = UNSET
    max_delay_ms: MaxDelayMs | UnsetType = UNSET


class Options(_Message, frozen=True, kw_only=True):
    """The fields that `config` and `open` share."""

    voice: str | UnsetType = UNSET
    encoding: str | UnsetType = UNSET
    sample_rate: int | UnsetType = UNSET
    sampling: Sampling | UnsetType = UNSET
    segment: Segmentation | UnsetType = UNSET
    lead_ms: LeadMs | UnsetType = UNSET
    words: bool | UnsetType = UNSET
    trace: bool | UnsetType = UNSET
    traceparent: TraceParent | UnsetType = UNSET


class Config(Options, frozen=True, kw_only=True, tag="config"):
    """Sticky defaults for the contexts opened after it."""


class Open(Options, frozen=True, kw_only=True, tag="open"):
    """Open a context with its own options."""

    context: ContextId


class Text(_Message, frozen=True, kw_only=True, tag="text"):
    """More text; may end inside a word."""

    context: ContextId
    text: str


class Flush(_Message, frozen=True, kw_only=True, tag="flush"):
    """Speak what is buffered; answered by `flushed` after its last audio."""

    context: ContextId
    id: MarkId | None = None


class End(_Message, frozen=True, kw_only=True, tag="end"):
    """No more text."""

    context: ContextId


class Cancel(_Message, frozen=True, kw_only=True, tag="cancel"):
    """Stop a context, or all of them; `played_ms` is how much the listener heard."""

    context: ContextId
    played_ms: PlayedMs | None = None


class Ping(_Message, frozen=True, kw_only=True, tag="ping"):
    """A fence: the `pong` comes after everything that was decided before it."""

    id: MarkId


class Close(_Message, frozen=True, kw_only=True, tag="close"):
    """`end` for every open context, then a normal close."""


ClientMessage = Config | Open | Text | Flush | End | Cancel | Ping | Close


# Server → client ---------------------------------------------------------------------------------


class Limits(_Base, frozen=True, kw_only=True):
    """What one socket may do."""

    contexts: int
    text_chars: int
    message_bytes: int
    idle_seconds: float
    session_seconds: float
    messages_per_second: int | None = None
    """None: the server does not say; older ones do not."""


class Ready(_Message, frozen=True, kw_only=True, tag="ready"):
    """First message on every socket."""

    session: str
    encodings: tuple[str, ...]
    sample_rates: tuple[int, ...]
    voices: tuple[str, ...]
    limits: Limits


class Started(_Message, frozen=True, kw_only=True, tag="started"):
    """The context's turn has come; `queue_ms` is how long its first segment waited for it."""

    context: str
    handle: int
    queue_ms: float


class Audio(_Message, frozen=True, kw_only=True, tag="audio"):
    """PCM of a context. `offset` counts the samples of the context delivered before it.

    msgpack names the context, the JSON protocol's binary frames its handle; the other field is left
    at its default after decoding.
    """

    context: str = ""
    handle: int = 0
    seq: int
    offset: int
    pcm: bytes


class Segment(_Message, frozen=True, kw_only=True, tag="segment"):
    """What the audio from `offset` on says."""

    context: str
    index: int
    text: str
    offset: int


class Flushed(_Message, frozen=True, kw_only=True, tag="flushed"):
    """All audio of the text before that `flush` has been sent."""

    context: str
    id: str | int | None = None


class Word(_Base, frozen=True, kw_only=True):
    """One word and when it is heard, in milliseconds from the context's first sample."""

    text: str
    start_ms: float
    end_ms: float


class Words(_Message, frozen=True, kw_only=True, tag="words", omit_defaults=False):
    """Word times of one segment, estimated from its length."""

    context: str
    words: tuple[Word, ...]
    approx: bool = True


class Times(_Base, frozen=True, kw_only=True, omit_defaults=True):
    """When an utterance got where, in milliseconds since it was opened; what never happened is left out.

    In the order in which they happen.
    """

    ready_ms: float | None = None
    """The first segment was complete."""
    turn_ms: float | None = None
    """It had a stream of the engine."""
    first_token_ms: float | None = None
    first_frame_ms: float | None = None
    first_samples_ms: float | None = None
    """The codec had decoded the first samples."""
    first_chunk_ms: float | None = None
    """The first audio was handed to the socket."""
    first_audio_ms: float | None = None
    """The first audible sample was."""


class Done(_Message, frozen=True, kw_only=True, tag="done"):
    """Terminal: the context was spoken. `reason` is the worst of its segments'."""

    context: str
    reason: Literal["end", "empty", "length", "loop"]
    audio_ms: float
    chars: int
    ttfa_ms: float | None = None
    rtf: float | None = None
    trace: Times | None = None
    """If it was asked for."""


class Cancelled(_Message, frozen=True, kw_only=True, tag="cancelled"):
    """Terminal: the context was cancelled. The texts are there when `played_ms` was given."""

    context: str
    sent_ms: float
    text_spoken: str | None = None
    text_remaining: str | None = None
    trace: Times | None = None
    """If it was asked for."""


class Warn(_Message, frozen=True, kw_only=True, tag="warning"):
    """Something a developer should know; nothing has ended."""

    context: str | None = None
    code: str
    message: str


class Error(_Message, frozen=True, kw_only=True, tag="error"):
    """With a context: terminal for it. `fatal`: the socket closes after this message."""

    context: str | None = None
    code: str
    message: str
    retryable: bool
    retry_after_ms: int | None = None
    fatal: bool


class Draining(_Message, frozen=True, kw_only=True, tag="draining"):
    """The server is going away: finish within `deadline_ms`, open new work elsewhere."""

    deadline_ms: int


class Pong(_Message, frozen=True, kw_only=True, tag="pong"):
    """Answer to `ping`."""

    id: str | int


ServerMessage = (
    Ready
    | Started
    | Audio
    | Segment
    | Flushed
    | Words
    | Done
    | Cancelled
    | Warn
    | Error
    | Draining
    | Pong
)


# Resolved ----------------------------------------------------------------------------------------


class Settings(_Base, frozen=True, kw_only=True):
    """Options with every default filled in: what one context is spoken with."""

    voice: str
    encoding: str = "pcm_s16le"
    sample_rate: int = tokens.SAMPLE_RATE
    temperature: float = tokens.TEMPERATURE
    top_p: float = tokens.TOP_P
    repetition_penalty: float = tokens.REPETITION_PENALTY
    seed: int | None = None
    max_tokens: int = tokens.MAX_TOKENS
    mode: SegmentMode = "sentence"
    max_delay_ms: int = 400
    lead_ms: int = 2000
    words: bool = False
    trace: bool = False
    traceparent: str | None = None

    def updated(self, options: Options) -> "Settings":
        """These settings with what `options` names replaced."""
        changes: dict[str, object] = {}
        for source in (options, options.sampling, options.segment):
            if source is UNSET:
                continue
            for name in source.__struct_fields__:
                value = getattr(source, name)
                if value is not UNSET and name in self.__struct_fields__:
                    changes[name] = value
        return msgspec.structs.replace(self, **changes)
