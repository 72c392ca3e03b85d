"""One line per request, for programs or people; never a prompt, an answer or a key."""

import json
import logging

import pytest
from attack_kit import BODY, all_routers, ask, key
from served_kit import running, served

from kvist.errors import BadValue
from kvist.server.observe.logs import RequestLog, setup_logging
from kvist.server.tenants import Tenants


@pytest.fixture
def stderr(capsys):
    loggers = [logging.getLogger(name) for name in ("kvist", "uvicorn.error")]
    before = [(x, x.handlers[:], x.level, x.propagate) for x in loggers]
    yield lambda: capsys.readouterr().err
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def lines_of(monkeypatch, stderr, style, requests, level="info"):
    all_routers(monkeypatch)
    setup_logging(level, style)
    with running(served("a secret answer that nobody sees"), tenants=Tenants.parse(["ann:key-of-ann"])) as server:
        server.service.observers.append(RequestLog())
        for body, headers in requests:
            ask(server.url, "POST", "/v1/completions", body, {**key("key-of-ann"), **headers})
        server.books()
    return stderr().splitlines()


def test_json_lines(monkeypatch, stderr):
    lines = lines_of(monkeypatch, stderr, "json", [(BODY, {"X-Request-Id": "mine"}), (BODY, {})])
    first, second = [json.loads(line) for line in lines]
    assert first["message"] == "request" and first["level"] == "info" and first["time"].endswith("+00:00")
    expected = {"request": "req-1", "name": "mine", "tenant": "ann", "endpoint": "completion", "finish": "length"}
    assert expected.items() <= first.items()
    assert first["prompt_tokens"] == 4 and first["completion_tokens"] == 4 and first["cached_tokens"] == 0
    assert first["miss"] == "empty" and first["preemptions"] == 0 and first["error"] is None
    assert 0 <= first["queue_ms"] <= first["ttft_ms"] <= first["e2e_ms"] and first["tpot_ms"] >= 0
    assert second["cached_tokens"] == 3 and second["miss"] == "limit"


def test_text_lines(monkeypatch, stderr):
    (line,) = lines_of(monkeypatch, stderr, "text", [(BODY, {})])
    assert " info    request request=req-1 " in line and " tenant=ann " in line and " finish=length " in line


@pytest.mark.parametrize("style", ["json", "text"])
def test_no_prompt_no_answer_no_key(monkeypatch, stderr, style):
    body = {**BODY, "prompt": "my password is hunter2"}
    bad = {**BODY, "prompt": "hunter2", "temperature": -1}
    lines = lines_of(monkeypatch, stderr, style, [(body, {}), (bad, {}), (b"hunter2", {})], "debug")
    assert lines
    assert not any(word in "\n".join(lines) for word in ("hunter2", "secret", "key-of-ann", "password"))


def test_levels(monkeypatch, stderr):
    assert lines_of(monkeypatch, stderr, "text", [(BODY, {})], "warning") == []


def test_nothing_breaks_a_line(stderr):
    """Control characters of whatever kind stay inside their field."""
    evil = 'x\n2026-01-01 forged\x1b[2J\u2028 "quoted"\r'
    log = logging.getLogger("kvist.server")
    for style in ("json", "text"):
        setup_logging("info", style)
        log.info("reset\n%s", evil, extra={"fields": {"by": evil, "seconds": 0.25, "none": None}})
    one, two, *rest = stderr().split("\n")
    assert rest == [""]
    assert json.loads(one)["by"] == evil and json.loads(one)["seconds"] == 0.25
    assert "\x1b" not in two and "\u2028" not in two and "seconds=0.25" in two and "none" not in two


def test_exceptions_are_shown(stderr):
    for style in ("json", "text"):
        setup_logging("info", style)
        try:
            raise ValueError("deep inside")
        except ValueError:
            logging.getLogger("kvist.server").exception("a bug")
    text = stderr()
    assert text.count("ValueError: deep inside") == 2
    assert "Traceback" in json.loads(text.splitlines()[0])["exception"]


def test_set_up_twice_is_one_line(stderr):
    setup_logging("info", "text")
    setup_logging("info", "text")
    logging.getLogger("kvist.server").info("once")
    assert stderr().count("once") == 1


def test_malformed_requests_do_not_fill_the_log(stderr):
    setup_logging("debug", "text")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("uvicorn.error").error("ours")
    text = stderr()
    assert "Invalid" not in text and "ours" in text


@pytest.mark.parametrize("level,style", [("loud", "text"), ("INFO", "text"), ("info", "xml"), ("", "json")])
def test_what_is_no_level_or_format(level, style):
    with pytest.raises(BadValue, match="expected one of"):
        setup_logging(level, style)
