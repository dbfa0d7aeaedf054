# needs: pydantic-ai-slim[openai]==2.68.0
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect
from turns import MODELS, TURNS, result

import asyncio

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("guide", provider=OpenAIProvider(base_url=ROOT + "/v1", api_key="unused"))
expect(Agent(model, model_settings={"temperature": 0, "max_tokens": 40}).run_sync(QUESTION).output)

called = []


def tool(name):
    """A tool of the agent that notes its call."""

    def call(asked):
        called.append(result(name, name, asked.model_dump()))
        return called[-1]

    call.__annotations__ = {"asked": MODELS[name]}
    call.__name__, call.__doc__ = name, MODELS[name].__doc__
    return call


class CallsFirst(AbstractCapability):
    """The first request of a turn must call a tool. The one with its result is free to end the turn."""

    def __init__(self, name):
        self.name = name

    def get_model_settings(self):
        choice = [self.name] if self.name else "required"
        return lambda context: {"max_tokens": 100, "tool_choice": "none" if called else choice}


async def turn(agent, is_streamed, **asked):
    if not is_streamed:
        return await agent.run(QUESTION, **asked)
    async with agent.run_stream(QUESTION, **asked) as run:
        await run.get_output()
        return run


async def main():
    for is_streamed in [False, True]:
        history = None
        for name in TURNS:
            agent = Agent(model, tools=[tool(name) for name in MODELS], capabilities=[CallsFirst(name)])
            called.clear()
            run = await turn(agent, is_streamed, message_history=history)
            assert called, "no tool was called"
            history = run.all_messages()
        for wanted in MODELS.values():
            for output in [wanted, NativeOutput(wanted, strict=True)]:
                agent = Agent(model, output_type=output, retries=0)
                run = await turn(agent, is_streamed, message_history=history, model_settings={"max_tokens": 100})
                value = await run.get_output() if is_streamed else run.output
                assert isinstance(value, wanted), value


asyncio.run(main())
