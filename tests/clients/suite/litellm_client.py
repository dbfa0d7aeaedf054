# needs: litellm==1.106.2
# speaks: OpenAI, Anthropic, Ollama
# when: all
from question import ASKED, QUESTION, ROOT, expect

import litellm

for model, base in [("openai/guide", ROOT + "/v1"), ("anthropic/guide", ROOT), ("ollama_chat/guide", ROOT)]:
    answer = litellm.completion(model=model, api_base=base, api_key="unused", messages=ASKED, max_tokens=40, temperature=0)
    expect(answer.choices[0].message.content)
    pieces = litellm.completion(
        model=model, api_base=base, api_key="unused", messages=ASKED, max_tokens=40, temperature=0, stream=True)
    expect("".join(piece.choices[0].delta.content or "" for piece in pieces))
