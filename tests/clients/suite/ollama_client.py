# needs: ollama==0.6.3 pydantic==2.12.5
# speaks: Ollama
# when: all
from question import ASKED, QUESTION, ROOT, expect
from turns import OLLAMA_TOOLS, TURNS, Note, result, schema

import ollama

client = ollama.Client(host=ROOT)
expect(client.chat("guide", messages=ASKED, options={"temperature": 0, "num_predict": 40}).message.content)
assert client.pull("guide").status == "success"
assert "guide" in [model.model for model in client.list().models]
assert "tools" in client.show("guide").capabilities

for is_streamed in [False, True]:
    messages = list(ASKED)
    for _ in TURNS:
        asked = {"model": "caller", "messages": messages, "tools": OLLAMA_TOOLS, "options": {"num_predict": 100}}
        if is_streamed:
            chunks = [chunk.message for chunk in client.chat(**asked, stream=True)]
            text, calls = "".join(chunk.content or "" for chunk in chunks), [c for chunk in chunks for c in chunk.tool_calls or []]
        else:
            message = client.chat(**asked).message
            text, calls = message.content or "", message.tool_calls or []
        [call] = calls
        said = result(None, call.function.name, dict(call.function.arguments))
        messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        messages.append({"role": "tool", "tool_name": call.function.name, "content": said})
    asked = {"model": "guide", "messages": messages, "format": schema(Note)}
    if is_streamed:
        text = "".join(chunk.message.content or "" for chunk in client.chat(**asked, stream=True))
    else:
        text = client.chat(**asked).message.content
    Note.model_validate_json(text)
