"""OpenAI's official client and its Responses API, with the built-in model and with stand-ins."""

import openai
import pytest

QUESTION = "Which port does model-boss listen on?"
GREEDY = {"model": "guide", "temperature": 0, "max_output_tokens": 40}


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
    assert events[-1].response.usage == whole.usage
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


def test_en_7_thinking_is_an_item_of_its_own(fake):
    """A stand-in does not think, so this is the request: the wish reaches the engine in the field that it reads."""
    echo = fake.responses.create(model="echo", input="?", reasoning={"effort": "low"})
    assert '"reasoning_effort":"low"' in echo.output_text.replace(": ", ":")
