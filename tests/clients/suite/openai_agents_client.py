# needs: openai-agents==0.24.0
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect
from turns import MODELS, TURNS, Note, result, schema

import asyncio

import openai
from agents import (
    Agent, FunctionTool, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled)

set_tracing_disabled(True)
called = []


def tool(name):
    async def call(context, arguments):
        called.append(name)
        return result(name, name, arguments)

    return FunctionTool(
        name=name, description=MODELS[name].__doc__, params_json_schema=schema(MODELS[name]), on_invoke_tool=call, strict_json_schema=True)


async def turn(agent, asked, is_streamed):
    if not is_streamed:
        return await Runner.run(agent, asked)
    run = Runner.run_streamed(agent, asked)
    async for _ in run.stream_events():
        pass
    return run


async def conversation(model, is_streamed):
    history = list(ASKED)
    for name in TURNS:
        # The agent is free again once it has called a tool, and ends its turn with a text.
        settings = ModelSettings(tool_choice=name or "required", parallel_tool_calls=False, max_tokens=100)
        agent = Agent(name="a", model=model, model_settings=settings, tools=[tool(name) for name in MODELS])
        called.clear()
        run = await turn(agent, history, is_streamed)
        assert len(called) == 1 and name in (None, called[0]), (name, called)
        history = [*run.to_input_list(), *ASKED]
    agent = Agent(name="a", model=model, model_settings=ModelSettings(max_tokens=100), output_type=Note)
    run = await turn(agent, history, is_streamed)
    assert isinstance(run.final_output, Note), run.final_output


async def main():
    client = openai.AsyncOpenAI(base_url=ROOT + "/v1", api_key="unused")
    for kind in [OpenAIChatCompletionsModel, OpenAIResponsesModel]:
        model = kind(model="guide", openai_client=client)
        agent = Agent(name="a", model=model, model_settings=ModelSettings(temperature=0, max_tokens=40))
        expect((await Runner.run(agent, QUESTION)).final_output)
        for is_streamed in [False, True]:
            await conversation(model, is_streamed)


asyncio.run(main())
