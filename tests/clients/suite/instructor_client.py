# needs: instructor==1.17.0
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect
from turns import MODELS, TURNS, Note

import instructor
import openai

for mode in [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA]:
    client = instructor.from_openai(openai.OpenAI(base_url=ROOT + "/v1", api_key="unused"), mode=mode)
    for is_streamed in [False, True]:
        messages = list(ASKED)
        for name in TURNS:
            wanted = MODELS[name] if name else Note
            asked = {"model": "guide", "messages": messages, "response_model": wanted, "max_retries": 0, "max_tokens": 100}
            value = list(client.create_partial(**asked))[-1] if is_streamed else client.create(**asked)
            value = wanted.model_validate(value.model_dump())
            messages.append({"role": "assistant", "content": value.model_dump_json()})
            messages.append({"role": "user", "content": QUESTION})
