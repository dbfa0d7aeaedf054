# needs: smolagents[openai]==1.26.0
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect

from smolagents import OpenAIServerModel

model = OpenAIServerModel(model_id="guide", api_base=ROOT + "/v1", api_key="unused", temperature=0, max_tokens=40)
expect(model([{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]).content)
