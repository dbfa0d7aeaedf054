"""OpenAI's official client and its Responses API, with the built-in model and with stand-ins."""

import re

import openai
import pytest
from conftest import client_of, coordinator

QUESTION = "Which port does model-boss listen on?"
GREEDY = {"model": "guide", "temperature": 0, "max_output_tokens": 40}


def counted(usage):
    """All of the usage except the tokens found in the cache: there are more of them the second time."""
    return usage.input_tokens, usage.output_tokens, usage.output_tokens_details.reasoning_tokens, usage.total_tokens


def test_en_7_a_response_whole_and_streamed(guide):
    whole = guide.responses.create(input=QUESTION, **GREEDY)
    assert whole.status == "completed" and "8210" in whole.output_text
    assert whole.id.startswith("resp_") and whole.usage.input_tokens > 0 and whole.usage.output_tokens > 0
    events = list(guide.responses.create(input=QUESTION, stream=True, **GREEDY))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[1].type, events[-1].type] == [
        "response.created", "response.in_progress", "response.completed"
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 2 and "".join(deltas) == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    assert counted(events[-1].response.usage) == counted(whole.usage)
    cut = guide.responses.create(input=QUESTION, **{**GREEDY, "max_output_tokens": 2})
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_en_7_the_clients_own_stream_puts_a_response_together(guide):
    with guide.responses.stream(input=[{"role": "user", "content": QUESTION}], **GREEDY) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.output_item.added", "response.content_part.added", "response.output_text.done"} <= kinds
    assert "8210" in final.output_text


def test_en_7_a_conversation_goes_on_by_its_id(guide, fake):
    first = guide.responses.create(input=QUESTION, instructions="Be brief.", **GREEDY)
    assert first.instructions == "Be brief."
    again = guide.responses.create(input="And again?", previous_response_id=first.id, **GREEDY)
    assert again.previous_response_id == first.id and again.usage.input_tokens > first.usage.input_tokens
    assert guide.responses.retrieve(first.id).output_text == first.output_text
    items = guide.responses.input_items.list(again.id)
    assert [item.content[0].text for item in items] == ["And again?"]
    unstored = guide.responses.create(input=QUESTION, store=False, **GREEDY)
    guide.responses.delete(first.id)
    for gone in [first.id, unstored.id]:
        with pytest.raises(openai.NotFoundError):
            guide.responses.retrieve(gone)
        with pytest.raises(openai.BadRequestError) as caught:
            guide.responses.create(input="?", previous_response_id=gone, **GREEDY)
        assert caught.value.param == "previous_response_id"
    echo = fake.responses.create(model="echo", input=[
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "a cat"},
    ], tools=[{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": True}])
    assert '"tool_call_id": "c"' in echo.output_text or '"tool_call_id":"c"' in echo.output_text


def test_en_7_what_cannot_be_done_is_refused_in_the_clients_words(guide, fake):
    for options, field in [
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "custom", "name": "write"}]}, "tools[0]"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ]:
        with pytest.raises(openai.BadRequestError) as caught:
            guide.responses.create(**{**GREEDY, "input": QUESTION, **options})
        assert caught.value.param == field and field in caught.value.message
    with pytest.raises(openai.NotFoundError):
        guide.responses.create(model="no-such-model", input="?")
    long = [{"role": "user", "content": "one two three"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    with pytest.raises(openai.BadRequestError) as caught:
        fake.responses.create(model="small", input=long)
    assert caught.value.code == "context_length_exceeded"
    assert fake.responses.create(model="small", input=long, truncation="auto").status == "completed"


def test_en_7_a_call_that_was_cut_is_incomplete_and_the_conversation_goes_on_without_it(guide):
    text = {"type": "string", "minLength": 1_000}
    parameters = {"type": "object", "properties": {"text": text}, "required": ["text"], "additionalProperties": False}
    say = {"type": "function", "name": "say", "parameters": parameters, "strict": True}
    agent = {**GREEDY, "model": "agent"}
    asked = {**agent, "input": QUESTION, "tools": [say], "tool_choice": "required", "max_output_tokens": 80}
    whole = guide.responses.create(**asked)
    assert (whole.status, whole.output[-1].type) == ("incomplete", "function_call")
    assert whole.output[-1].status == "incomplete"
    assert guide.responses.retrieve(whole.id).output[-1].status == "incomplete"
    events = list(guide.responses.create(stream=True, **asked))
    done = [event for event in events if event.type == "response.output_item.done"]
    assert events[-1].type == "response.incomplete" and events[-1].response.output[-1].status == "incomplete"
    assert (done[-1].item.type, done[-1].item.status) == ("function_call", "incomplete")
    assert "response.function_call_arguments.done" not in [event.type for event in events]
    again = guide.responses.create(input="And again?", previous_response_id=whole.id, **agent)
    assert again.previous_response_id == whole.id
    result = {"type": "function_call_output", "call_id": whole.output[-1].call_id, "output": "said"}
    with pytest.raises(openai.BadRequestError) as caught:
        guide.responses.create(input=[result], previous_response_id=whole.id, **agent)
    assert caught.value.param == "input[0].call_id"


def test_en_6_fields_of_chats_and_of_other_servers_are_read(guide, fake):
    form = {"type": "regex", "pattern": "[0-9]{4}"}
    held = guide.responses.create(input=QUESTION, extra_body={"response_format": form}, **GREEDY)
    assert re.fullmatch("[0-9]{4}", held.output_text)
    with pytest.raises(openai.BadRequestError) as caught:
        guide.responses.create(
            input=QUESTION, text={"format": {"type": "json_object"}}, extra_body={"response_format": form}, **GREEDY
        )
    assert caught.value.param == "response_format" and "text.format" in caught.value.message
    alone = [guide.responses.create(input=QUESTION, extra_body={"cache_prompt": False}, **GREEDY) for _ in range(2)]
    assert [response.usage.input_tokens_details.cached_tokens for response in alone] == [0, 0]
    # The other tools stay in the request: the prefix cache has them.
    nothing = {"type": "object", "properties": {}}
    tools = [{"type": "function", "name": name, "parameters": nothing} for name in ["look", "listen"]]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
    echo = fake.responses.create(model="echo", input="?", tools=tools, tool_choice=allowed).output_text
    assert '"listen"' in echo and '"allowed_tools"' in echo


def test_en_7_thinking_is_an_item_of_its_own(guide, fake):
    asked = {**GREEDY, "model": "thinker", "input": QUESTION, "max_output_tokens": 12}
    whole = guide.responses.create(**asked)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    thought = whole.output[0].content[0]
    assert thought.type == "reasoning_text" and thought.text and whole.output_text
    assert "think>" not in thought.text + whole.output_text
    assert whole.usage.output_tokens_details.reasoning_tokens >= 4
    events = list(guide.responses.create(stream=True, **asked))
    kinds = [event.type.removeprefix("response.") for event in events]
    thoughts = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert ("".join(thoughts), "".join(texts)) == (thought.text, whole.output_text)
    assert kinds.index("reasoning_text.done") < kinds.index("output_text.delta")
    added = [event.item.type for event in events if event.type == "response.output_item.added"]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert added == ["reasoning", "message"] and done[0].content[0].text == thought.text
    final = events[-1].response
    assert [item.type for item in final.output] == added and counted(final.usage) == counted(whole.usage)

    # The conversation goes on, with the thoughts among its items and without them in the prompt.
    again = guide.responses.create(**{**asked, "input": "And again?", "previous_response_id": whole.id})
    assert [item.type for item in again.output] == added
    # Thinking is turned off by the wish for no effort, and cut by a budget.
    quiet = guide.responses.create(reasoning={"effort": "none"}, **asked)
    assert [item.type for item in quiet.output] == ["message"] and quiet.output_text
    brief = guide.responses.create(extra_body={"thinking": 2}, **asked)
    assert brief.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens_details.reasoning_tokens
    # A stand-in does not think: the wish reaches the engine in the field that it reads.
    echo = fake.responses.create(model="echo", input="?", reasoning={"effort": "low"})
    assert '"reasoning_effort":"low"' in echo.output_text.replace(": ", ":")


def test_en_7_the_store_is_bounded_and_names_what_it_dropped(tmp_path):
    folder = tmp_path / "models/echo"
    folder.mkdir(parents=True)
    (folder / "fake.json").write_text('{"reply": "fine"}')
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests/echo.toml").write_text(f'name = "echo"\nvram = "64MiB"\nsource = {{ path = "{folder}" }}\n')
    with coordinator(tmp_path, "model-boss-fake-worker", '[limits]\nresponses = "32KiB"\n') as url:
        client = client_of(url)
        ask = lambda **more: client.responses.create(model="echo", input="?" * 4_000, **more)  # noqa: E731
        first = ask()
        assert ask(previous_response_id=first.id).status == "completed"
        unstored = ask(store=False)
        assert not unstored.store
        later = [ask().id for _ in range(8)]
        for gone in [first.id, unstored.id]:
            with pytest.raises(openai.NotFoundError) as caught:
                client.responses.retrieve(gone)
            assert gone in caught.value.message
            with pytest.raises(openai.BadRequestError) as caught:
                ask(previous_response_id=gone)
            assert caught.value.param == "previous_response_id" and gone in caught.value.message
        assert ask(previous_response_id=later[-1]).previous_response_id == later[-1]
        assert client.responses.retrieve(later[-1]).output_text == "fine"
