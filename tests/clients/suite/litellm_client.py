# needs: litellm==1.106.2 mcp==2.3.0
# speaks: OpenAI, Anthropic, Ollama
# when: all
from question import ASKED, QUESTION, ROOT, expect
from turns import OLLAMA_TOOLS, TOOLS, TURNS, Note, openai_choice, result

import litellm

for model, base in [("openai/guide", ROOT + "/v1"), ("anthropic/guide", ROOT), ("ollama_chat/guide", ROOT)]:
    answer = litellm.completion(model=model, api_base=base, api_key="unused", messages=ASKED, max_tokens=40, temperature=0)
    expect(answer.choices[0].message.content)
    pieces = litellm.completion(
        model=model, api_base=base, api_key="unused", messages=ASKED, max_tokens=40, temperature=0, stream=True)
    expect("".join(piece.choices[0].delta.content or "" for piece in pieces))

for model, base in [("openai/guide", ROOT + "/v1"), ("anthropic/guide", ROOT), ("ollama_chat/caller", ROOT)]:
    for is_streamed in [False, True]:
        messages = list(ASKED)
        for name in TURNS:
            asked = {"model": model, "api_base": base, "api_key": "unused", "messages": messages, "max_tokens": 100}
            if model.startswith("ollama"):
                name, asked["tools"] = None, OLLAMA_TOOLS
            else:
                asked |= {"tools": TOOLS, "tool_choice": openai_choice(name), "parallel_tool_calls": False}
            answer = litellm.completion(**asked, stream=is_streamed)
            if is_streamed:
                answer = litellm.stream_chunk_builder(list(answer), messages=messages)
            message = answer.choices[0].message
            assert answer.choices[0].finish_reason == "tool_calls", (model, is_streamed, answer)
            [call] = message.tool_calls
            said = result(name, call.function.name, call.function.arguments)
            calls = [{"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}}]
            messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})

# An answer in the form of a strict schema, which litellm asks of each API in its own way.
for model, base in [("openai/guide", ROOT + "/v1"), ("anthropic/guide", ROOT), ("ollama_chat/guide", ROOT)]:
    asked = {"model": model, "api_base": base, "api_key": "unused", "messages": ASKED, "max_tokens": 100, "response_format": Note}
    Note.model_validate_json(litellm.completion(**asked).choices[0].message.content)
    pieces = litellm.completion(**asked, stream=True)
    Note.model_validate_json("".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices))
