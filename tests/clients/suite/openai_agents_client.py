# needs: openai-agents==0.24.0
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect

import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled

set_tracing_disabled(True)
model = OpenAIChatCompletionsModel(model="guide", openai_client=openai.AsyncOpenAI(base_url=ROOT + "/v1", api_key="unused"))
agent = Agent(name="a", model=model, model_settings=ModelSettings(temperature=0, max_tokens=40))
expect(Runner.run_sync(agent, QUESTION).final_output)
