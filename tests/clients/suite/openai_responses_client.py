# needs: openai==3.52.0
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect

import openai

client = openai.OpenAI(base_url=ROOT, api_key="unused", max_retries=0)
options = {"model": "guide", "temperature": 0, "max_output_tokens": 40}
first = client.responses.create(input=QUESTION, **options)
expect(first.output_text)
with client.responses.stream(input=ASKED, previous_response_id=first.id, **options) as stream:
    kinds = [event.type for event in stream]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    assert stream.get_final_response().output_text
