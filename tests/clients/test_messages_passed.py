"""Anthropic's official client, through this server, to a provider of Anthropic's API: requests and answers pass as they are (ADR 77)."""

import http.server
import json
import threading

import anthropic
import pytest

from conftest import anthropic_of, coordinator

THINKING = {"type": "thinking", "thinking": "I look it up.", "signature": "EqQBCkYIBxgCKkA="}
CONTENT = [
    THINKING,
    {"type": "redacted_thinking", "data": "EmwKAhgBEgy3"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "port"}},
    {"type": "text", "text": "8210.", "citations": [{
        "type": "char_location", "cited_text": "8210", "document_index": 0, "document_title": "t", "start_char_index": 0, "end_char_index": 4}]},
    {"type": "tool_use", "id": "toolu_1", "name": "run", "input": {"command": "ls"}},
]
USAGE = {"input_tokens": 12, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 0, "output_tokens": 7, "service_tier": "standard"}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_busy"}


def events():
    """The same answer in pieces, as Anthropic streams it."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-real-20990101", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": USAGE | {"output_tokens": 1}}
    yield {"type": "message_start", "message": message}
    yield {"type": "ping"}
    for index, block in enumerate(CONTENT):
        deltas, start = [], dict(block)
        if block["type"] == "thinking":
            start |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}, {"type": "signature_delta", "signature": block["signature"]}]
        elif block["type"] == "text":
            start |= {"text": "", "citations": []}
            deltas = [{"type": "text_delta", "text": block["text"]}]
            deltas += [{"type": "citations_delta", "citation": citation} for citation in block["citations"]]
        elif "input" in block:
            start["input"] = {}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": USAGE}
    yield {"type": "message_stop"}


class Anthropics(http.server.BaseHTTPRequestHandler):
    """A provider that records what reaches it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, dict(self.headers), body))
        status, kind = 200, "application/json"
        if body.get("metadata") == {"user_id": "busy"}:
            status, answer = 529, json.dumps(OVERLOADED)
        elif "count_tokens" in self.path:
            answer = json.dumps({"input_tokens": 14})
        elif body.get("stream"):
            kind = "text/event-stream"
            answer = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events())
        else:
            answer = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-real-20990101", "content": CONTENT}
            answer = json.dumps(answer | {"stop_reason": "tool_use", "stop_sequence": None, "usage": USAGE})
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(answer.encode())))
        self.send_header("request-id", "req_1")
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def provider():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Anthropics)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def claude(provider, tmp_path_factory):
    folder = tmp_path_factory.mktemp("passed")
    (folder / "manifests").mkdir()
    settings = f'[providers.claude]\nbase_url = "http://127.0.0.1:{provider.server_port}"\nmodels = {{ opus = "claude-real" }}\n'
    with coordinator(folder, "model-boss-fake-worker", settings) as url:
        yield anthropic_of(url)


# The client's own types know these fields and blocks.
MESSAGES = [
    {"role": "user", "content": [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Port 8210."},
         "citations": {"enabled": True}, "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Which port?"},
    ]},
    {"role": "assistant", "content": CONTENT},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "no such file", "is_error": True}]},
]
ASKED = {
    "model": "claude:opus", "max_tokens": 3000, "messages": MESSAGES,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "tools": [{"type": "web_search_20250305", "name": "web_search"}, {"name": "run", "input_schema": {"type": "object"}}],
}
AT_PROVIDER = ASKED | {"model": "claude-real"}


def check(message):
    assert message.model == "claude:opus"
    assert (message.stop_reason, message.usage.input_tokens, message.usage.cache_read_input_tokens) == ("tool_use", 12, 100)
    for block, expected in zip(message.content, CONTENT, strict=True):
        said = block.to_dict()
        assert {name: said[name] for name in expected} == expected


def test_en_7_a_whole_answer(claude, provider):
    message = claude.messages.create(**ASKED, extra_headers={"anthropic-beta": "context-management-2025-06-27"})
    check(message)
    assert message._request_id == "req_1"
    path, headers, body = provider.asked[-1]
    assert (path, body) == ("/v1/messages", AT_PROVIDER)
    assert headers["anthropic-beta"] == "context-management-2025-06-27"
    assert "unused" not in str(headers), "the client's key is for this server alone"


def test_en_7_a_streamed_answer(claude, provider):
    with claude.messages.stream(**ASKED) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    check(message)
    assert {"thinking", "signature", "citation", "input_json"} <= set(kinds)
    assert provider.asked[-1][2] == AT_PROVIDER | {"stream": True}


def test_en_7_what_came_back_goes_back(claude, provider):
    # A conversation goes on with the blocks of the answer, signatures and all.
    message = claude.messages.create(**ASKED)
    longer = [*MESSAGES, {"role": "assistant", "content": message.content}, {"role": "user", "content": "And now?"}]
    check(claude.messages.create(**ASKED | {"messages": longer}))
    again = provider.asked[-1][2]["messages"][3]["content"]
    for block, expected in zip(again, CONTENT, strict=True):
        assert {name: block[name] for name in expected} == expected


def test_en_7_betas_counts_and_errors(claude, provider):
    message = claude.beta.messages.create(**ASKED, betas=["files-api-2025-04-14", "mcp-client-2025-04-04"], container="container_1")
    assert message.stop_reason == "tool_use"
    _, headers, body = provider.asked[-1]
    assert headers["anthropic-beta"] == "files-api-2025-04-14,mcp-client-2025-04-04"
    assert body == AT_PROVIDER | {"container": "container_1"}
    counted = {name: value for name, value in ASKED.items() if name != "max_tokens"}
    assert claude.messages.count_tokens(**counted).input_tokens == 14
    assert provider.asked[-1][2] == counted | {"model": "claude-real"}
    with pytest.raises(anthropic.APIStatusError) as caught:
        claude.messages.create(**ASKED, metadata={"user_id": "busy"})
    assert (caught.value.status_code, caught.value.body, caught.value.request_id) == (529, OVERLOADED, "req_busy")
