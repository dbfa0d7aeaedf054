# needs: openai==3.52.0
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect

import openai

client = openai.OpenAI(base_url=ROOT, api_key="unused", max_retries=0)
options = {"model": "guide", "temperature": 0, "max_tokens": 40}
expect(client.chat.completions.create(messages=ASKED, **options).choices[0].message.content)
stream = client.chat.completions.create(messages=ASKED, stream=True, stream_options={"include_usage": True}, **options)
expect("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
