"""The server over real sockets, as `tests/test_server_machine.py` has it, for longer."""

import pytest
from hypothesis import HealthCheck, settings

from tests.server_machine import ServerMachine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TestServer = ServerMachine.TestCase
TestServer.settings = settings(
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
