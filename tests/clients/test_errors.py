"""Errors become the client's own exception classes, with code and param, and fields pass through as sent."""

import json

import openai
import pytest

from conftest import client_of

HELLO = [{"role": "user", "content": "hello"}]


def ask(client, model, **options):
    return client.chat.completions.create(model=model, messages=HELLO, **options)


def test_an_unknown_model(fake):
    with pytest.raises(openai.NotFoundError) as caught:
        ask(fake, "no-such-model")
    assert caught.value.code == "model_not_found"
    assert "no-such-model" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        fake.models.retrieve("no-such-model")


def test_a_wrong_type_names_the_field(fake):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(fake, "echo", extra_body={"x_priority": "urgent"})
    assert (caught.value.code, caught.value.param) == ("invalid_request", "x_priority")


def test_a_prompt_over_the_context(fake):
    with pytest.raises(openai.BadRequestError) as caught:
        fake.chat.completions.create(model="small", messages=[{"role": "user", "content": "word " * 50}])
    assert caught.value.code == "context_length_exceeded"


def test_a_model_that_cannot_load(fake):
    with pytest.raises(openai.InternalServerError) as caught:
        ask(fake, "broken")
    assert caught.value.status_code == 502
    assert caught.value.code == "model_load_failed"
    assert "model.safetensors is cut" in caught.value.message


def test_the_clients_timeout_is_a_timeout(fake_url):
    with pytest.raises(openai.APITimeoutError):
        ask(client_of(fake_url).with_options(timeout=0.5), "slow")


def test_rc_13_a_budget_is_kept_by_the_server(fake):
    with pytest.raises(openai.InternalServerError) as caught:
        ask(fake, "slow", extra_body={"x_budget_s": 0.5})
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")


def test_rc_2_fields_reach_the_worker_and_extensions_do_not(fake):
    answer = ask(fake, "echo", seed=3, extra_body={"x_client_id": "me", "x_priority": 7, "keep_alive": "5m"})
    body = json.loads(answer.choices[0].message.content)["body"]
    assert body["seed"] == 3
    assert body["messages"] == HELLO
    assert not [name for name in body if name.startswith("x_") or name == "keep_alive"]


def test_tr_2_headers_say_who_served(fake):
    answer = fake.chat.completions.with_raw_response.create(model="echo", messages=HELLO)
    assert answer.headers["x-served-model"] == "echo"
    assert answer.headers["x-request-id"]
