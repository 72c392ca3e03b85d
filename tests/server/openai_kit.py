"""The OpenAI endpoints of a running server: the official client, and raw requests."""

import json
from contextlib import contextmanager
from functools import cache

import httpx
from openai import OpenAI
from served_kit import running, served

__all__ = ["client_of", "posted", "served", "serving", "streamed"]


@contextmanager
def serving(what=None, **changes):
    """``running`` over a paper model, or any ``Served``."""
    with running(what if what is not None else served(), **changes) as server:
        yield server


def client_of(server, **options):
    return OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60, **options)


@cache
def http():
    return httpx.Client(timeout=60)


def posted(server, path, body, **options):
    return http().post(server.url + path, json=body, **options)


def streamed(server, path, body):
    """(chunks as objects, whether [DONE] came) of a streaming request."""
    chunks, done = [], False
    with http().stream("POST", server.url + path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line:
                continue
            assert line.startswith("data: "), line
            assert not done, "nothing may come after [DONE]"
            if line == "data: [DONE]":
                done = True
            else:
                chunks.append(json.loads(line[6:]))
    return chunks, done
