"""What must hold of everything that is said, whoever says it.

Rule: plain assertions, with an eye on the peer's side alone.
"""

from orpheus_ws import messages as m
from orpheus_ws.errors import OrpheusError

SECRET = "zqxjkv"
"""A word that is in no text of ours: where it is in an error, it came from the peer."""
_OURS = set("…–—’µ×")


def check_error(error: OrpheusError) -> None:
    """One line of our own words."""
    check_words(str(error))


def check_words(text: str) -> None:
    """One line, and nothing in it that only a peer writes."""
    assert text
    assert text.isprintable(), "an error of several lines"
    assert SECRET not in text, "an error repeats the peer"
    assert all(character.isascii() or character in _OURS for character in text), "not our words"


class Ledger:
    """One socket's replies, in order: each context has one end, and audio without a gap before it."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[int, int]] = {}
        """By context: audio messages and samples so far."""
        self.ended: list[str] = []

    def hear(self, message: m.ServerMessage, sample_bytes: int = 2) -> None:
        """Check a message against all before it."""
        match message:
            case m.Started():
                assert message.context not in self.open
                self.open[message.context] = (0, 0)
            case m.Segment():
                if (
                    not message.text
                ):  # the moment of silence for text without sound, which waits for no turn
                    self.open.setdefault(message.context, (0, 0))
                assert message.offset == self.open[message.context][1]
            case m.Audio():
                seq, offset = self.open[message.context]
                assert (message.seq, message.offset) == (seq, offset), "a gap"
                samples, rest = divmod(len(message.pcm), sample_bytes)
                assert samples, "audio without a sample"
                assert rest == 0, "part of a sample"
                self.open[message.context] = (seq + 1, offset + samples)
            case m.Words():
                assert message.context in self.open
            case m.Done(context=context) | m.Cancelled(context=context):
                self.open.pop(context, None)
                self.ended.append(context)
            case m.Error(context=str(context)):
                check_words(message.message)
                self.open.pop(context, None)
                self.ended.append(context)
            case m.Error() | m.Warn():
                check_words(message.message)
            case _:
                pass
