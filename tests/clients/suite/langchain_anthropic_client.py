# needs: langchain-anthropic==1.7.7
# speaks: Anthropic
# when: all
from question import ASKED, QUESTION, ROOT, expect

from langchain_anthropic import ChatAnthropic

model = ChatAnthropic(model="guide", base_url=ROOT, api_key="unused", max_tokens=40, temperature=0)
answer = model.invoke(QUESTION)
expect(answer.content)
assert answer.usage_metadata["input_tokens"] > 0, answer.usage_metadata
