# Eight agents at once, of fifty turns each: every call is valid, and what was said before is in the prefix cache. The agents
# take the APIs in turns; arguments choose some of them: chats, messages, responses.
# needs: openai==3.52.0 anthropic==2.12.0
# speaks: OpenAI, Anthropic
# when: all
from question import ROOT
from turns import MODELS, TOOLS, openai_choice, result, schema

import concurrent.futures
import sys
import time

import anthropic
import openai

AGENTS, LENGTH = 8, 50
NAMES = [*MODELS, None]
openai_client = openai.OpenAI(base_url=ROOT, api_key="unused", max_retries=0, timeout=120)
anthropic_client = anthropic.Anthropic(base_url=ROOT, api_key="unused", max_retries=0, timeout=120)


class Chats:
    """Turns over chat completions. Each API's turn returns the name and arguments of its one call, the function that puts
    the call's result into the history, and the cached tokens among those of the prompt."""

    def __init__(self, first):
        self.history = [{"role": "user", "content": first}]

    def turn(self, name, is_streamed, on_call):
        asked = {
            "model": "agent", "messages": self.history, "tools": TOOLS, "tool_choice": openai_choice(name),
            "parallel_tool_calls": False, "max_tokens": 600,
        }
        if is_streamed:
            with openai_client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
                for event in stream:
                    if event.type == "chunk" and event.chunk.choices and event.chunk.choices[0].delta.tool_calls:
                        on_call()
                answer = stream.get_final_completion()
        else:
            answer = openai_client.chat.completions.create(**asked)
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls", choice
        [call] = choice.message.tool_calls
        function = {"name": call.function.name, "arguments": call.function.arguments}
        calls = [{"id": call.id, "type": "function", "function": function}]

        def go_on(said):
            self.history.append({"role": "assistant", "content": None, "tool_calls": calls})
            self.history.append({"role": "tool", "tool_call_id": call.id, "content": said})

        seen = answer.usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens
        return call.function.name, call.function.arguments, go_on, seen


class Messages:
    """Turns over Anthropic's Messages."""

    tools = [
        {"name": name, "description": model.__doc__, "strict": True, "input_schema": schema(model)} for name, model in MODELS.items()
    ]

    def __init__(self, first):
        self.history = [{"role": "user", "content": first}]

    def turn(self, name, is_streamed, on_call):
        choice = {"type": "tool", "name": name} if name else {"type": "any"}
        asked = {
            "model": "agent", "messages": self.history, "tools": self.tools, "max_tokens": 600,
            "tool_choice": {**choice, "disable_parallel_tool_use": True},
        }
        if is_streamed:
            with anthropic_client.messages.stream(**asked) as stream:
                for event in stream:
                    if event.type == "content_block_start" and event.content_block.type == "tool_use":
                        on_call()
                answer = stream.get_final_message()
        else:
            answer = anthropic_client.messages.create(**asked)
        assert answer.stop_reason == "tool_use", answer
        [call] = [block for block in answer.content if block.type == "tool_use"]

        def go_on(said):
            used = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}
            self.history.append({"role": "assistant", "content": [used]})
            self.history.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": said}]})

        cached = answer.usage.cache_read_input_tokens
        return call.name, call.input, go_on, (cached, cached + answer.usage.input_tokens)


class Responses:
    """Turns over OpenAI's Responses, with the whole history in each request."""

    tools = [
        {"type": "function", "name": name, "description": model.__doc__, "strict": True, "parameters": schema(model)}
        for name, model in MODELS.items()
    ]

    def __init__(self, first):
        self.history = [{"role": "user", "content": first}]

    def turn(self, name, is_streamed, on_call):
        asked = {
            "model": "agent", "input": self.history, "tools": self.tools, "parallel_tool_calls": False, "max_output_tokens": 600,
            "tool_choice": {"type": "function", "name": name} if name else "required", "store": False,
        }
        if is_streamed:
            with openai_client.responses.stream(**asked) as stream:
                for event in stream:
                    if event.type == "response.output_item.added" and event.item.type == "function_call":
                        on_call()
                answer = stream.get_final_response()
        else:
            answer = openai_client.responses.create(**asked)
        assert answer.status == "completed", answer
        [call] = [item for item in answer.output if item.type == "function_call"]

        def go_on(said):
            sent = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            self.history += [sent, {"type": "function_call_output", "call_id": call.call_id, "output": said}]

        return call.name, call.arguments, go_on, (answer.usage.input_tokens_details.cached_tokens, answer.usage.input_tokens)


APIS = {"chats": Chats, "messages": Messages, "responses": Responses}
chosen = [APIS[name] for name in sys.argv[1:] or APIS]


def agent(number):
    """One agent: what its turns had in the cache, how long their prompts were, and after how long a call began."""
    conversation = chosen[number % len(chosen)](f"Agent {number}.")
    seen, begun = [], []
    for turn in range(LENGTH):
        name = NAMES[(number + turn) % len(NAMES)]
        asked_at, first = time.monotonic(), []
        called, arguments, go_on, tokens = conversation.turn(
            name, (number + turn) % 2 == 1, lambda: first.append(time.monotonic() - asked_at))
        go_on(result(name, called, arguments))
        seen.append(tokens)
        begun += first[:1]
    return seen, begun


waits = []
with concurrent.futures.ThreadPoolExecutor(AGENTS) as pool:
    for number, (seen, begun) in enumerate(pool.map(agent, range(AGENTS))):
        waits += begun
        prompts = [prompt for _, prompt in seen]
        assert prompts == sorted(set(prompts)), f"agent {number}: the history does not grow: {prompts}"
        # Blocks that are full are kept, so all but the last turn's words are found again, when the cache has room for them.
        grown = [cached for cached, _ in seen]
        assert grown[-1] > grown[LENGTH // 2] > grown[1] > 0, f"agent {number}: {seen}"
        late = seen[LENGTH // 2:]
        share = sum(cached for cached, _ in late) / sum(prompt for _, prompt in late)
        assert share > 0.8, f"agent {number}: {share:.0%} of its prompts were in the cache: {seen}"
waits.sort()
print(f"{AGENTS} agents, {LENGTH} turns each; call begun after: median {waits[len(waits) // 2]:.3f} s, "
      f"95 of 100 {waits[len(waits) * 95 // 100]:.3f} s, last {waits[-1]:.3f} s")
