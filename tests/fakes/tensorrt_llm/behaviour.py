"""What the stand-in does wrong, and what machine it pretends to be on."""

import os
import threading
from dataclasses import dataclass, field
from typing import Any

VERSION = os.environ.get("FAKE_TENSORRT_LLM", "1.2.1")
LATER = VERSION != "1.2.1"


@dataclass
class Behaviour:
    """Set it before the engine is opened, or while it runs."""

    opened: list[Any] = field(default_factory=list)
    """Every `LLM` there was; what each was asked is in its `requests`."""
    loading: threading.Event | None = None
    """The constructor waits for it, once its worker has been started."""
    load_error: Exception | None = None
    """The constructor raises it, after its worker has been started."""
    kv_tokens: int = 10**9
    """Ids for which there is memory in the KV cache."""
    honours_penalty: bool = True
    """Of the samplers that do at all."""
    honours_seed: bool = True
    honours_bias: bool = True
    mixes_up: str | None = None
    """A sampling parameter that everybody in a batch has from whoever came first."""
    end_id_in_ids: bool = False
    """Whether the id that a request ends with is among its ids; the real one's habit is not known."""
    empty_last_response: bool = False
    """The last response comes a step later and brings no id."""
    kv_statistics: bool = True
    failing_requests: set[int] = field(default_factory=set)
    """Requests, counted from 0, that end in a `RequestError` after a frame."""
    strange_requests: dict[int, BaseException] = field(default_factory=dict)
    """Requests that end in this after a frame."""
    gives_up: set[int] = field(default_factory=set)
    """Requests that the engine ends by itself, as `timeout`, after a frame."""
    ignores_aborts: bool = False
    step_seconds: float = 0.0
    dies_after_steps: int | None = None
    """The worker fails: all requests raise, and the executor is shut down."""
    silent: bool = False
    """The worker's failure is told to no request."""
    stuck: threading.Event | None = None
    """Shutting down waits for it."""
    helper: bool = False
    """Another process is started beside the worker, and outlives it."""
    waits_at_exit: bool = False
    """When the interpreter ends it waits for a worker that was killed, and so for ever."""


behaviour = Behaviour()
