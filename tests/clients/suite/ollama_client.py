# needs: ollama==0.6.3
# speaks: Ollama
# when: all
from question import ASKED, QUESTION, ROOT, expect

import ollama

client = ollama.Client(host=ROOT)
expect(client.chat("guide", messages=ASKED, options={"temperature": 0, "num_predict": 40}).message.content)
assert client.pull("guide").status == "success"
assert "guide" in [model.model for model in client.list().models]
assert client.show("guide").capabilities
