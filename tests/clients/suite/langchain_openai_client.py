# needs: langchain-openai==1.7.3
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect

from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="guide", base_url=ROOT + "/v1", api_key="unused", temperature=0, max_tokens=40)
expect(model.invoke(QUESTION).content)
expect("".join(piece.content for piece in model.stream(QUESTION)))
