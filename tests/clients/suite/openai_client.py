# needs: openai==3.52.0
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect
from turns import TOOLS, TURNS, Note, openai_choice, result

import openai

client = openai.OpenAI(base_url=ROOT, api_key="unused", max_retries=0)
options = {"model": "guide", "temperature": 0, "max_tokens": 40}
expect(client.chat.completions.create(messages=ASKED, **options).choices[0].message.content)
stream = client.chat.completions.create(messages=ASKED, stream=True, stream_options={"include_usage": True}, **options)
expect("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))

for is_streamed in [False, True]:
    messages = list(ASKED)
    for name in TURNS:
        asked = {
            "model": "guide", "messages": messages, "tools": TOOLS, "tool_choice": openai_choice(name),
            "parallel_tool_calls": False, "max_tokens": 100,
        }
        if is_streamed:
            with client.chat.completions.stream(**asked) as stream:
                choice = stream.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(**asked).choices[0]
        assert choice.finish_reason == "tool_calls", choice
        [call] = choice.message.tool_calls
        said = result(name, call.function.name, call.function.arguments)
        calls = [{"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}}]
        messages.append({"role": "assistant", "content": choice.message.content, "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    asked = {"model": "guide", "messages": messages, "response_format": Note, "max_tokens": 100}
    if is_streamed:
        with client.chat.completions.stream(**asked) as stream:
            message = stream.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.parse(**asked).choices[0].message
    assert isinstance(message.parsed, Note), message

    # Several calls in one answer, their results, and a turn in which the model is free.
    messages.append({"role": "user", "content": QUESTION})
    for choice_of_tools, is_demanded in [("required", True), ("auto", False)]:
        asked = {"model": "guide", "messages": messages, "tools": TOOLS, "tool_choice": choice_of_tools, "max_tokens": 200}
        if is_streamed:
            with client.chat.completions.stream(**asked) as stream:
                choice = stream.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(**asked).choices[0]
        calls = list(choice.message.tool_calls or [])
        if choice.finish_reason == "length" and calls:
            calls.pop()
        assert calls or not is_demanded, choice
        assert len({call.id for call in calls}) == len(calls), calls
        said = [result(None, call.function.name, call.function.arguments) for call in calls]
        sent = [{"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}} for call in calls]
        messages.append({"role": "assistant", "content": choice.message.content or "", **({"tool_calls": sent} if sent else {})})
        messages += [{"role": "tool", "tool_call_id": call.id, "content": said} for call, said in zip(calls, said)]
        messages.append({"role": "user", "content": QUESTION})
