# needs: llama-index-llms-openai-like==0.8.1 llama-index-llms-ollama==0.11.0
# speaks: OpenAI, Ollama
# when: all
from question import ASKED, QUESTION, ROOT, expect

from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike

openai_like = OpenAILike(model="guide", api_base=ROOT + "/v1", api_key="unused", is_chat_model=True, temperature=0, max_tokens=40)
expect(openai_like.complete(QUESTION).text)
expect(Ollama(model="guide", base_url=ROOT, temperature=0, additional_kwargs={"num_predict": 40}).complete(QUESTION).text)
