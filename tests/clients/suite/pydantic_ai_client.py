# needs: pydantic-ai-slim[openai]==2.68.0
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("guide", provider=OpenAIProvider(base_url=ROOT + "/v1", api_key="unused"))
expect(Agent(model, model_settings={"temperature": 0, "max_tokens": 40}).run_sync(QUESTION).output)
