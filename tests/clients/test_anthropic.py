"""Anthropic's official client, unchanged, pointed at this server: the built-in model answers as a Claude model would."""

import re

import anthropic
import pytest

from conftest import anthropic_of

QUESTION = [{"role": "user", "content": "Which port does model-boss listen on?"}]


@pytest.fixture(scope="session")
def claude(guide_url):
    return anthropic_of(guide_url)


def ask(client, **options):
    return client.messages.create(**{"model": "guide", "max_tokens": 64, "messages": QUESTION, **options})


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def test_en_7_a_whole_answer(claude):
    message = ask(claude, extra_body={"temperature": 0})
    assert (message.type, message.role, message.model) == ("message", "assistant", "guide")
    assert "8210" in text_of(message)
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0


def test_en_7_a_streamed_answer_says_the_same(claude):
    whole = ask(claude, extra_body={"temperature": 0})
    options = {"model": "guide", "max_tokens": 64, "messages": QUESTION, "extra_body": {"temperature": 0}}
    with claude.messages.stream(**options) as stream:
        pieces = list(stream.text_stream)
        last = stream.get_final_message()
    assert len(pieces) > 1
    assert "".join(pieces) == text_of(whole) == text_of(last)
    assert last.stop_reason == "end_turn"
    assert last.usage.output_tokens == whole.usage.output_tokens


def test_max_tokens_and_stop_sequences_cut(claude):
    short = ask(claude, max_tokens=3)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 3)
    assert "8210" not in text_of(ask(claude, stop_sequences=["8210"], extra_body={"temperature": 0}))


def test_en_6_fields_of_chats_and_of_other_servers_are_read(claude):
    form = {"type": "regex", "pattern": "[0-9]{4}"}
    assert re.fullmatch("[0-9]{4}", text_of(ask(claude, extra_body={"response_format": form})))
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(claude, extra_body={"response_format": form, "output_config": {"format": schema}})
    assert "output_config.format" in str(caught.value)
    alone = [ask(claude, extra_body={"cache_prompt": False}) for _ in range(2)]
    assert [message.usage.cache_read_input_tokens for message in alone] == [0, 0]


def test_en_7_blocks_are_read_and_tokens_counted(claude):
    plain = claude.messages.count_tokens(model="guide", messages=QUESTION).input_tokens
    blocks = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    assert claude.messages.count_tokens(model="guide", messages=blocks).input_tokens == plain
    longer = [{"role": "user", "content": QUESTION[0]["content"] * 3}]
    assert claude.messages.count_tokens(model="guide", messages=longer, system="Be brief.").input_tokens > plain
    # Tokens that were read from the prefix cache are counted apart.
    usage = ask(claude).usage
    assert usage.input_tokens + usage.cache_read_input_tokens == plain


def test_errors_are_the_clients_own(claude):
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(claude, model="no-such-model")
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert "no-such-model" in caught.value.body["error"]["message"]
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(claude, messages=[{"role": "judge", "content": "x"}])
    assert "judge" in str(caught.value)


def test_models_are_listed_and_found(claude):
    # The client parses this server's list, whose entries have all fields that it requires.
    assert "guide" in [model.id for model in claude.models.list(limit=5)]
