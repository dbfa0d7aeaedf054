"""Official clients with only a base URL: the behaviour that each of them expects of the server it was written for."""

import json
import urllib.error
import urllib.request

import anthropic
import ollama
import openai
import pytest

from conftest import anthropic_of, client_of, ollama_of

HELLO = [{"role": "user", "content": "Which port does model-boss listen on?"}]
BEGUN = [*HELLO, {"role": "assistant", "content": "It listens on port"}]


@pytest.mark.parametrize("end", ["/v1", "/v1/", "", "/", "/api/v1"])
def test_a_base_url_is_written_in_many_ways(guide_url, end):
    client = client_of(guide_url.removesuffix("/v1") + end)
    assert "guide" in [model.id for model in client.models.list()]
    assert client.chat.completions.create(model="guide:latest", messages=HELLO, max_tokens=3).choices


@pytest.mark.parametrize("end", ["", "/", "/v1"])
def test_anthropics_base_url(guide_url, end):
    client = anthropic.Anthropic(base_url=guide_url.removesuffix("/v1") + end, api_key="x", max_retries=0)
    assert client.messages.create(model="guide", max_tokens=3, messages=HELLO).content
    models = list(client.models.list(limit=1))
    assert "guide" in [model.id for model in models] and models[0].created_at.year >= 1970
    assert client.models.retrieve("guide").display_name == "guide"


def test_en_4_a_last_answer_goes_on(guide, guide_url):
    options = {"model": "guide", "max_tokens": 8, "temperature": 0}
    answer = guide.chat.completions.create(messages=BEGUN, **options).choices[0].message.content
    assert answer.strip().startswith("8210")
    message = anthropic_of(guide_url).messages.create(messages=BEGUN, model="guide", max_tokens=8, extra_body={"temperature": 0})
    assert message.content[0].text.strip().startswith("8210")
    apart = guide.chat.completions.create(messages=BEGUN, extra_body={"continue_final_message": False}, **options)
    assert not apart.choices[0].message.content.strip().startswith("8210")


def test_en_7_a_message_starts_with_its_prompts_tokens(guide_url):
    client = anthropic_of(guide_url)
    counted = client.messages.count_tokens(model="guide", messages=HELLO).input_tokens
    with client.messages.create(model="guide", max_tokens=4, messages=HELLO, stream=True) as stream:
        start = next(iter(stream))
        list(stream)
    usage = start.message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted > 0


SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "additionalProperties": False,
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
}
TOOLS = [{"type": "function", "function": {"name": "save", "description": "Saves a person", "strict": True, "parameters": SCHEMA}}]


def assert_is_person(value):
    assert set(value) == {"name", "age"} and len(value["name"]) <= 10 and 0 <= value["age"] <= 150


def test_en_6_every_client_gets_the_form_that_it_asks_for(guide, guide_url):
    forced = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    for options in [{"response_format": forced}, {"extra_body": {"guided_json": SCHEMA}}, {"extra_body": {"json_schema": SCHEMA}}]:
        answer = guide.chat.completions.create(model="guide", messages=HELLO, max_tokens=100, **options)
        assert_is_person(json.loads(answer.choices[0].message.content))
    format = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = anthropic_of(guide_url).messages.create(
        model="guide", max_tokens=100, messages=HELLO, extra_body={"output_config": format})
    assert_is_person(json.loads(message.content[0].text))
    said = ollama_of(guide_url).chat("guide", messages=HELLO, format=SCHEMA)
    assert_is_person(json.loads(said.message.content))


def test_en_6_what_cannot_be_forced_is_refused_by_its_keyword(guide, guide_url):
    schema = {"type": "array", "uniqueItems": True}
    forced = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        guide.chat.completions.create(model="guide", messages=HELLO, response_format=forced)
    assert caught.value.param == "response_format.json_schema.schema" and "uniqueItems" in str(caught.value)
    with pytest.raises(openai.BadRequestError) as caught:
        guide.chat.completions.create(model="guide", messages=HELLO, extra_body={"structural_tag": {"a": 1}})
    assert caught.value.code == "unsupported_by_model" and "vLLM" in str(caught.value)
    with pytest.raises(ollama.ResponseError) as caught:
        ollama_of(guide_url).chat("guide", messages=HELLO, format=schema)
    assert "uniqueItems" in caught.value.error


def test_en_5_every_client_gets_calls_of_tools(guide, guide_url):
    answer = guide.chat.completions.create(
        model="guide", messages=HELLO, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=100)
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls" and call.function.name == "save"
    assert_is_person(json.loads(call.function.arguments))
    messages = [*HELLO, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "saved"}]
    name, arguments = "", ""
    for chunk in guide.chat.completions.create(
            model="guide", messages=messages, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "save"}},
            parallel_tool_calls=False, max_tokens=100, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments
    assert name == "save"
    assert_is_person(json.loads(arguments))
    message = anthropic_of(guide_url).messages.create(
        model="guide", max_tokens=100, messages=HELLO, tools=[{"name": "save", "input_schema": SCHEMA}],
        tool_choice={"type": "tool", "name": "save", "disable_parallel_tool_use": True})
    assert message.stop_reason == "tool_use" and message.content[0].name == "save"
    assert_is_person(message.content[0].input)
    assert "tools" in ollama_of(guide_url).show("guide").capabilities


def test_no_limit_and_no_stop(guide):
    answer = guide.chat.completions.create(model="guide", messages=HELLO, max_tokens=-1, stop="", temperature=0)
    assert answer.choices[0].finish_reason == "stop"


def test_en_7_ollamas_logprobs_and_pull(guide_url):
    client = ollama_of(guide_url)
    assert client.pull("guide").status == "success"
    assert [line.status for line in client.pull("guide:latest", stream=True)][-1] == "success"
    with pytest.raises(ollama.ResponseError) as caught:
        client.pull("no-such-model")
    assert caught.value.status_code == 404 and "no-such-model" in caught.value.error
    body = {"model": "guide", "messages": HELLO, "stream": False, "logprobs": True, "top_logprobs": 2,
            "options": {"num_predict": 3}}
    request = urllib.request.Request(
        guide_url.removesuffix("/v1") + "/api/chat", json.dumps(body).encode(), {"content-type": "application/json"})
    told = json.load(urllib.request.urlopen(request))["logprobs"]
    assert len(told) == 3 and len(told[0]["top_logprobs"]) == 2 and told[0]["logprob"] <= 0


def test_a_prompt_over_the_context_is_told_in_each_clients_words(fake_url):
    long = [{"role": "user", "content": "word " * 50}]
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(fake_url).chat.completions.create(model="small", messages=long)
    assert "This model's maximum context length is 5 tokens" in str(caught.value)
    with pytest.raises(anthropic.BadRequestError) as caught:
        anthropic_of(fake_url).messages.create(model="small", max_tokens=4, messages=long)
    assert "prompt is too long" in str(caught.value)


def test_somebody_is_there(guide_url):
    root = guide_url.removesuffix("/v1")
    for method in ["GET", "HEAD"]:
        with urllib.request.urlopen(urllib.request.Request(root + "/", method=method)) as answer:
            assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(root + "/api/nothing")
    assert isinstance(json.load(caught.value)["error"], str)
