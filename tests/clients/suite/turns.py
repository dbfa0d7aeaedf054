"""A conversation of five turns with three tools. An agent sends such requests, and each call must be valid.

The built-in model calls tools only where it is made to, so each turn demands a call. It was never trained to choose arguments.
"""

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

class Strict(BaseModel):
    """What OpenAI's strict schemas ask for: no other fields."""

    model_config = ConfigDict(extra="forbid")


class Weather(Strict):
    """The weather of a city."""

    city: Literal["Kyiv", "Rome", "Lagos"]
    days: Literal[1, 2, 3]


class Lamp(Strict):
    """Switches a lamp."""

    room: Literal["kitchen", "hall"]
    on: bool


class Note(Strict):
    """Keeps a note."""

    text: Annotated[str, Field(max_length=12)]
    tags: list[Literal["home", "work"]] = Field(max_length=2)
    stars: int = Field(ge=1, le=5)


class Clock(Strict):
    """The time."""

    zone: Literal["UTC", "local"]


MODELS = {"weather": Weather, "lamp": Lamp, "note": Note}
# Ollama's client drops lengths, ranges and `strict` from schemas: a tool for it has neither texts nor numbers.
SIMPLE = {"weather": Weather, "lamp": Lamp, "clock": Clock}
# The tool that each turn must call; any of them where none is named.
TURNS = ["weather", "note", "lamp", None, "weather"]


def schema(model):
    """The schema of a model, every field required."""
    return {"required": list(model.model_fields), **model.model_json_schema()}


def openai_tool(name, model):
    function = {"name": name, "description": model.__doc__, "strict": True, "parameters": schema(model)}
    return {"type": "function", "function": function}


TOOLS = [openai_tool(name, model) for name, model in MODELS.items()]


# For an API without a choice among tools: the model `caller` calls one of them, whichever it likes.
OLLAMA_TOOLS = [openai_tool(name, model) for name, model in SIMPLE.items()]


def openai_choice(name):
    return {"type": "function", "function": {"name": name}} if name else "required"


def result(expected, name, arguments):
    """Asserts that a call is the expected one and valid, and returns the tool's answer to it."""
    assert expected in (None, name), (expected, name)
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    checked = (MODELS | SIMPLE)[name].model_validate(arguments, strict=True)
    return json.dumps({"done": name, "fields": len(checked.model_fields_set)})
