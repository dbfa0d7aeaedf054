# Eight agents at once, of fifty turns each: every call is valid, and what was said before is in the prefix cache.
# needs: openai==3.52.0
# speaks: OpenAI
# when: all
from question import ROOT
from turns import MODELS, TOOLS, openai_choice, result

import concurrent.futures
import time

import openai

AGENTS, LENGTH = 8, 50
client = openai.OpenAI(base_url=ROOT, api_key="unused", max_retries=0, timeout=120)
NAMES = [*MODELS, None]


def agent(number):
    """One agent: what its turns had in the cache, how long their prompts were, and after how long an answer began."""
    messages = [{"role": "user", "content": f"Agent {number}."}]
    seen, begun = [], []
    for turn in range(LENGTH):
        name = NAMES[(number + turn) % len(NAMES)]
        asked = {
            "model": "agent", "messages": messages, "tools": TOOLS, "tool_choice": openai_choice(name),
            "parallel_tool_calls": False, "max_tokens": 600,
        }
        if (number + turn) % 2:
            asked["stream_options"] = {"include_usage": True}
            asked_at = time.monotonic()
            with client.chat.completions.stream(**asked) as stream:
                for event in stream:
                    if event.type == "chunk" and event.chunk.choices and event.chunk.choices[0].delta.tool_calls:
                        begun.append(time.monotonic() - asked_at)
                        break
                answer = stream.get_final_completion()
        else:
            answer = client.chat.completions.create(**asked)
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls", (number, turn, choice)
        [call] = choice.message.tool_calls
        said = result(name, call.function.name, call.function.arguments)
        function = {"name": call.function.name, "arguments": call.function.arguments}
        messages.append({"role": "assistant", "content": None, "tool_calls": [{"id": call.id, "type": "function", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
        seen.append((answer.usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens))
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
