# needs: openai==3.52.0
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect
from turns import MODELS, TURNS, Note, result, schema

import openai

client = openai.OpenAI(base_url=ROOT, api_key="unused", max_retries=0)
options = {"model": "guide", "temperature": 0, "max_output_tokens": 40}
first = client.responses.create(input=QUESTION, **options)
expect(first.output_text)
with client.responses.stream(input=ASKED, previous_response_id=first.id, **options) as stream:
    kinds = [event.type for event in stream]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    assert stream.get_final_response().output_text

# The package makes the schema of `text_format`, and reads the answer with it.
for model in MODELS.values():
    asked = {"model": "guide", "input": ASKED, "text_format": model, "max_output_tokens": 100}
    parsed = client.responses.parse(**asked)
    assert isinstance(parsed.output_parsed, model), parsed
    with client.responses.stream(**asked) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, model) and deltas == final.output_text, final

TOOLS = [
    {"type": "function", "name": name, "description": model.__doc__, "strict": True, "parameters": schema(model)}
    for name, model in MODELS.items()
]


def turn(is_streamed, **asked):
    """A response, and the calls in it. Streamed arguments must be those of the finished response."""
    if not is_streamed:
        response = client.responses.create(**asked)
    else:
        pieces = {}
        with client.responses.stream(**asked) as stream:
            for event in stream:
                if event.type == "response.function_call_arguments.delta":
                    pieces[event.item_id] = pieces.get(event.item_id, "") + event.delta
            response = stream.get_final_response()
        assert pieces == {item.id: item.arguments for item in response.output if item.type == "function_call"}, pieces
    assert response.status == "completed", response
    return response, [item for item in response.output if item.type == "function_call"]


for is_stored in [True, False]:
    for is_streamed in [False, True]:
        # With `store: false` the client sends the whole conversation, else its last part and the response before it.
        new, history, before = list(ASKED), [], None
        for name in TURNS:
            history += new
            choice = {"type": "function", "name": name} if name else "required"
            asked = {
                "model": "guide", "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "max_output_tokens": 100,
                "input": new if is_stored else history, "store": is_stored,
            }
            if is_stored and before:
                asked["previous_response_id"] = before
            response, [call] = turn(is_streamed, **asked)
            said = result(name, call.name, call.arguments)
            # What the package read from the schema is no part of a request.
            sent = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            history.append(sent)
            new, before = [{"type": "function_call_output", "call_id": call.call_id, "output": said}], response.id
        asked = {"model": "guide", "input": new if is_stored else history + new, "text_format": Note, "max_output_tokens": 100}
        if is_stored:
            parsed = client.responses.parse(previous_response_id=before, **asked)
            kept = client.responses.input_items.list(before)
            assert [item.type for item in kept] == ["function_call_output"], kept
        else:
            parsed = client.responses.parse(store=False, **asked)
            try:
                client.responses.retrieve(parsed.id)
                raise AssertionError("a response that is not stored was found")
            except openai.NotFoundError:
                pass
        assert isinstance(parsed.output_parsed, Note), parsed
