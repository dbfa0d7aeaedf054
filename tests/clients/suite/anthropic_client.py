# needs: anthropic==2.12.0
# speaks: Anthropic
# when: all
from question import ASKED, QUESTION, ROOT, expect

import anthropic

client = anthropic.Anthropic(base_url=ROOT, api_key="unused", max_retries=0)
options = {"model": "guide", "max_tokens": 40, "messages": ASKED}
expect(client.messages.create(**options, extra_body={"temperature": 0}).content[0].text)
with client.messages.stream(**options) as stream:
    assert "".join(stream.text_stream)
    assert stream.get_final_message().usage.input_tokens > 0
assert "guide" in [model.id for model in client.models.list()]
