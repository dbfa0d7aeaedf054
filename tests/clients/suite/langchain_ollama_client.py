# needs: langchain-ollama==1.1.0
# speaks: Ollama
# when: always
from question import ASKED, QUESTION, ROOT, expect

from langchain_ollama import ChatOllama

model = ChatOllama(model="guide", base_url=ROOT, temperature=0, num_predict=40, validate_model_on_init=True)
expect(model.invoke(QUESTION).content)
expect("".join(piece.content for piece in model.stream(QUESTION)))
