# needs: anthropic==2.12.0
# speaks: Anthropic
# when: all
from question import ASKED, QUESTION, ROOT, expect
from turns import MODELS, TURNS, Note, result, schema

import anthropic

client = anthropic.Anthropic(base_url=ROOT, api_key="unused", max_retries=0)
options = {"model": "guide", "max_tokens": 40, "messages": ASKED}
expect(client.messages.create(**options, extra_body={"temperature": 0}).content[0].text)
with client.messages.stream(**options) as stream:
    assert "".join(stream.text_stream)
    assert stream.get_final_message().usage.input_tokens > 0
assert "guide" in [model.id for model in client.models.list()]

tools = [
    {"name": name, "description": model.__doc__, "strict": True, "input_schema": schema(model)} for name, model in MODELS.items()
]
for is_streamed in [False, True]:
    messages = list(ASKED)
    for name in TURNS:
        choice = {"type": "tool", "name": name} if name else {"type": "any"}
        asked = {
            "model": "guide", "max_tokens": 100, "messages": messages, "tools": tools,
            "tool_choice": {**choice, "disable_parallel_tool_use": True},
        }
        if is_streamed:
            with client.messages.stream(**asked) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**asked)
        assert message.stop_reason == "tool_use", message
        [call] = [block for block in message.content if block.type == "tool_use"]
        said = result(name, call.name, call.input)
        messages.append({"role": "assistant", "content": message.content})
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": said}]})
    # An answer in the form of a strict schema, behind calls of tools.
    format = {"type": "json_schema", "schema": schema(Note)}
    asked = {"model": "guide", "max_tokens": 100, "messages": messages, "extra_body": {"output_config": {"format": format}}}
    if is_streamed:
        with client.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
            assert text == message.content[0].text, message
    else:
        message = client.messages.create(**asked)
    assert message.stop_reason == "end_turn", message
    Note.model_validate_json(message.content[0].text)
