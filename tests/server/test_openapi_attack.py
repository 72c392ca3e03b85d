"""The server attacked along its own OpenAPI description: whatever fits or does not fit it, nothing is a 5xx."""

import os

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from served_kit import running, served

schemathesis = pytest.importorskip("schemathesis")

EXAMPLES = int(os.environ.get("KVIST_ATTACK_EXAMPLES", "25"))
"""Per endpoint."""


def attack(operation, examples):
    """Statuses of the answers to made-up requests."""
    seen = []

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=operation.as_strategy())
    def send(case):
        answer = case.call(timeout=20)
        seen.append(answer.status_code)
        fault = answer.status_code >= 500
        assert not fault, (case.method, case.path, answer.status_code, answer.text[:500], case.body)

    send()
    return seen


def test_nothing_is_a_server_error():
    with running(served("Some words.", max_sequences=8), read_timeout_s=5.0, max_body_bytes=1 << 20) as server:
        schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
        operations = [found.ok() for found in schema.get_all_operations()]
        assert {o.path for o in operations} >= {"/v1/chat/completions", "/v1/completions", "/v1/messages"}
        for operation in operations:
            assert attack(operation, EXAMPLES), operation.path
            assert httpx.get(server.url + "/health").status_code == 200
        server.books()
