"""The codec loop: how many frames are waited for, and for how long."""

import asyncio

from orpheus_ws.audio import Portion
from tests.harness import turns_until
from tests.looking_decoder import frames, heard, opened, start


async def test_a_portion_is_waited_for() -> None:
    """`take` waits until there are as many frames as it was asked to wait for, or the end."""
    loop, decoder = await start()
    stream = opened(loop)
    taking = asyncio.create_task(stream.take(Portion(3, 4, in_hand=7200.0)))
    stream.push(frames(1, 2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert decoder.batches == []
    stream.push(frames(3))
    assert heard([await taking]) == [1, 2]
    taking = asyncio.create_task(stream.take(Portion(3, 4, in_hand=7200.0)))
    stream.push(frames(4))
    stream.finish()
    assert heard([await taking]) == [3, 4]
    await loop.close()


async def test_a_portion_is_not_waited_for_for_ever() -> None:
    """When its time is over, `take` has what came before, or else the next frame at once."""
    loop, _ = await start()
    stream = opened(loop)
    stream.push(frames(1, 2))
    assert heard([await stream.take(Portion(3, 4, in_hand=0.002))]) == [1]
    taking = asyncio.create_task(stream.take(Portion(3, 4, in_hand=0.0)))
    await turns_until(lambda: stream._portion == Portion(1, 4, 0.0))  # type: ignore[attr-defined]
    stream.push(frames(3))
    assert heard([await taking]) == [2]
    await loop.close()
