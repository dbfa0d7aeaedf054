# needs: langchain-openai==1.7.3
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect
from turns import TOOLS, TURNS, Note, result

from functools import reduce
from operator import add

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="guide", base_url=ROOT + "/v1", api_key="unused", temperature=0, max_tokens=40)
expect(model.invoke(QUESTION).content)
expect("".join(piece.content for piece in model.stream(QUESTION)))

model = ChatOpenAI(model="guide", base_url=ROOT + "/v1", api_key="unused", max_tokens=100)
for is_streamed in [False, True]:
    messages = [HumanMessage(QUESTION)]
    for name in TURNS:
        bound = model.bind_tools(TOOLS, tool_choice=name or "required", strict=True, parallel_tool_calls=False)
        message = reduce(add, bound.stream(messages)) if is_streamed else bound.invoke(messages)
        [call] = message.tool_calls
        said = result(name, call["name"], call["args"])
        messages += [message, ToolMessage(said, tool_call_id=call["id"])]
    for method in ["json_schema", "function_calling"]:
        bound = model.with_structured_output(Note, method=method, strict=True)
        note = list(bound.stream(messages))[-1] if is_streamed else bound.invoke(messages)
        assert isinstance(note, Note), note
