"""What a run is to do.

Rule: a plan is a value that can be written down and repeated. It has no key and nothing of the machine.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from orpheus_ws.audio import Player

Traffic = Literal["conversation", "steady"]

_Positive = Annotated[float, Meta(gt=0)]
_NotNegative = Annotated[float, Meta(ge=0)]
_Share = Annotated[float, Meta(ge=0, le=1)]


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load. The *ramp* is when streams join; what comes after it is *full load*."""

    url: str
    streams: Annotated[int, Meta(ge=1)] = 10
    """Sockets that speak. With `rate`: the most sockets at once."""
    rate: _Positive | None = None
    """Open loop: so many turns begin in a second, at random moments (Poisson), whether or not the
    server keeps up. None is a closed loop: every stream begins when its last turn is over."""
    seconds: _Positive = 30.0
    """Of full load, after which no turn begins."""
    utterances: Annotated[int, Meta(ge=1)] | None = None
    """Turns that begin at full load; with it `seconds` does not count."""
    ramp_seconds: _NotNegative = 2.0
    traffic: Traffic = "conversation"
    """Of a closed loop. `conversation`: a turn is heard to its end, then the other side speaks for
    about `pause_seconds`. `steady`: the next turn begins as soon as the server has ended the last."""
    pause_seconds: _NotNegative = 3.0
    """The mean; each pause is from half to one and a half of it, evenly."""
    words_per_second: _Positive | None = 30.0
    """How fast a language model writes the text. None: the text is sent whole."""
    sizes: tuple[_NotNegative, _NotNegative, _NotNegative] = (3.0, 4.0, 1.0)
    """How often short, medium and long turns are taken, relative to each other."""
    barge_in: _Share = 0.0
    """Share of the turns that the listener interrupts, at any moment of the middle 80 %."""
    reuse: bool = True
    """False: a socket for every turn."""
    lead_ms: Annotated[int, Meta(ge=200, le=10_000)] = 2000
    """How far ahead of the listener the server may send."""
    voice: str | None = None
    objective_ms: _Positive | None = None
    """The bound on the 99th percentile of the time to first byte."""
    stall_seconds: _Positive = 10.0
    """A turn that says nothing for so long, with nothing left to play, is given up."""
    prebuffer_ms: _NotNegative = Player.PREBUFFER * 1000
    """What the virtual player waits for after its first chunk."""
    processes: Annotated[int, Meta(ge=1)] | None = None
    """None: one for every 50 streams, at most one for each CPU."""
    seed: int = 0
    label: str = ""
    """What was measured, in words, for the report: which engine, and whether it is simulated."""
