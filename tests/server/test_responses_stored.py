"""Responses that are kept: found again, continued, deleted; bounded, and never another tenant's."""

import httpx
import openai
import pytest
from served_kit import running, served

from kvist.server.openai.responses_store import Responses, Stored
from kvist.server.tenants import Tenants


@pytest.fixture(scope="module")
def server():
    with running(served("Fine, thanks."), tenants=Tenants.parse(["ann:key-a", "bob:key-b"])) as it:
        yield it


def client(server, key="key-a"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


def test_a_conversation_goes_on_by_its_id(server):
    c = client(server)
    first = c.responses.create(model="tiny", input="How are you?", instructions="Be brief.")
    second = c.responses.create(model="tiny", input="And now?", instructions="Be brief.", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    turns = [
        {"role": "user", "content": "How are you?"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And now?"},
    ]
    by_hand = c.responses.create(model="tiny", input=turns, instructions="Be brief.")
    assert by_hand.usage.input_tokens == second.usage.input_tokens
    third = c.responses.create(model="tiny", input="And?", previous_response_id=second.id)
    assert third.instructions is None and third.usage.input_tokens > second.usage.input_tokens


def test_retrieve_delete_cancel(server):
    c = client(server)
    made = c.responses.create(model="tiny", input="hi", metadata={"a": "b"})
    assert c.responses.retrieve(made.id) == made
    with pytest.raises(openai.BadRequestError, match="background"):
        c.responses.cancel(made.id)
    c.responses.delete(made.id)
    for gone in (c.responses.retrieve, c.responses.delete, c.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            gone(made.id)
    answer = httpx.get(f"{server.url}/v1/responses/{made.id}", headers={"authorization": "Bearer key-a"})
    assert answer.json()["error"]["code"] == "response_not_found"


def test_what_is_not_stored_cannot_be_continued(server):
    c = client(server)
    made = c.responses.create(model="tiny", input="hi", store=False)
    assert made.model_dump()["store"] is False
    with pytest.raises(openai.NotFoundError) as caught:
        c.responses.create(model="tiny", input="hi", previous_response_id=made.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_another_tenant_sees_nothing(server):
    made = client(server).responses.create(model="tiny", input="hi")
    other = client(server, "key-b")
    for use in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            use(made.id)
    with pytest.raises(openai.NotFoundError):
        other.responses.create(model="tiny", input="hi", previous_response_id=made.id)
    assert client(server).responses.retrieve(made.id).id == made.id


def stored(name, chars=1):
    return Stored({"id": name}, (), chars)


def test_the_least_recently_used_go_first():
    store = Responses(most=2)
    store.put("t", stored("a"))
    store.put("t", stored("b"))
    assert store.find("t", "a") is not None
    store.put("t", stored("c"))
    assert store.find("t", "b") is None
    assert store.find("t", "a") and store.find("t", "c")
    assert store.drop("t", "a") and not store.drop("t", "a") and not store.drop("u", "c")


def test_characters_are_bounded_for_each_tenant():
    store = Responses(most_chars=10)
    store.put("t", stored("a", 6))
    store.put("u", stored("b", 6))
    store.put("t", stored("c", 4))
    assert store.find("t", "a") and store.find("t", "c")
    store.put("t", stored("d", 1))
    assert store.find("t", "a") is None and store.find("t", "c") and store.find("u", "b")
    assert store.drop("t", "c")
    store.put("t", stored("e", 9))
    assert store.find("t", "d") and store.find("t", "e")
    store.put("t", stored("huge", 11))
    assert store.find("t", "huge") is None and store.find("t", "e") is None
