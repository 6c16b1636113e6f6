"""A context while it is spoken: what it needs from one segment to the next.

Rule: it knows the listener's virtual player and everything between samples and bytes that has a
memory. It sends nothing and waits for nothing.
"""

from orpheus_ws.audio import LARGEST_PORTION, Player, Portion, Shaper, portion
from orpheus_ws.context import Context, State
from orpheus_ws.engine import Prompt
from orpheus_ws.pcm import Output
from orpheus_ws.server.receipts import most_unread, receipt_every
from orpheus_ws.tokens import FRAME_SECONDS, SAMPLE_RATE, SAMPLES_PER_FRAME
from orpheus_ws.trace import clock


class SpokenContext:
    """What speaking a context needs from one segment to the next."""

    def __init__(self, context: Context, player: Player, group_lead: float) -> None:
        self.context = context
        self.shaper = Shaper()
        self.player = player
        self.output = Output(context.settings.encoding, context.settings.sample_rate)
        self._lead = context.settings.lead_ms / 1000
        self.most_unread = most_unread(self._lead)
        self.receipt_every = receipt_every(self._lead)
        self._group_lead = group_lead

    def prompt(self, text: str) -> Prompt:
        """What the engine is asked to say."""
        settings = self.context.settings
        assert settings.seed is not None
        return Prompt(
            text=text,
            voice=settings.voice,
            seed=settings.seed,
            temperature=settings.temperature,
            top_p=settings.top_p,
            repetition_penalty=settings.repetition_penalty,
            max_tokens=settings.max_tokens,
        )

    def ask(self) -> Portion:
        """How many frames the listener should get next."""
        return portion(self.player.in_hand(clock()), self._lead, self._group_lead)

    def sounds(self) -> bool:
        """Whether an audible sample has been delivered; a resampler may still hold the first."""
        first, settings = self.shaper.first_sound, self.context.settings
        return (
            first is not None
            and first * settings.sample_rate < self.context.delivered * SAMPLE_RATE
        )

    def surplus(self, now: float) -> float:
        """Seconds until the listener has room for the next portion."""
        in_hand = self.player.in_hand(now)
        if in_hand + LARGEST_PORTION <= self._lead:
            return 0.0
        next_up = portion(in_hand, self._lead, self._group_lead).at_least
        return self.player.seconds_until(self._lead - next_up * FRAME_SECONDS, now)

    def unheard(self, unread: float) -> float:
        """Seconds that were generated and will not be heard if nothing more is played.

        `unread` seconds were sent and are known not to have been read.
        """
        context = self.context
        generated = context.trace.frames * SAMPLES_PER_FRAME - self.shaper.trimmed
        sent = context.delivered / context.settings.sample_rate
        in_hand = max(self.player.in_hand(clock()), unread)
        return max(0.0, generated / SAMPLE_RATE - sent) + in_hand


def player_for(context: Context, last: SpokenContext | None) -> Player:
    """The listener's player of `context`; the one of the `last` context while it still plays that."""
    if last is None or last.context is context:
        return Player() if last is None else last.player
    playing = last.context.state is State.DONE and last.player.in_hand(clock()) > 0
    return last.player if playing else Player()
