"""Traces of the real worker, decoded by OpenTelemetry's own Python package."""

import http.server
import queue
import shutil
import threading

import openai
from conftest import REPOSITORY, coordinator
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_chat_with_the_real_worker_is_one_trace(tmp_path):
    (tmp_path / "manifests").mkdir()
    shutil.copytree(REPOSITORY / "manifests/guide", tmp_path / "manifests/guide")
    bodies = queue.Queue()

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.put(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = f'otlp_endpoint = "http://127.0.0.1:{server.server_port}"\n'
    with coordinator(tmp_path, "model-boss-worker", settings) as url:
        client = openai.OpenAI(base_url=url, api_key="unused")
        answer = client.chat.completions.create(
            model="guide", messages=[{"role": "user", "content": "What is a lease?"}], max_tokens=8,
            extra_headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
        )
    # The last spans are sent before the coordinator ends.
    server.shutdown()
    server.server_close()
    spans = {}
    while not bodies.empty():
        for of_resource in ExportTraceServiceRequest.FromString(bodies.get()).resource_spans:
            for of_scope in of_resource.scope_spans:
                spans |= {span.name: span for span in of_scope.spans}
    assert spans.keys() == {"POST /v1/chat/completions", "queue", "load", "chat guide", "prefill", "decode"}
    request, call = spans["POST /v1/chat/completions"], spans["chat guide"]
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    assert {span.trace_id for span in spans.values()} == {request.trace_id}
    for child, parent in [("queue", request), ("load", spans["queue"]), ("prefill", call), ("decode", call)]:
        assert spans[child].parent_span_id == parent.span_id, child
        assert parent.start_time_unix_nano <= spans[child].start_time_unix_nano, child
        assert spans[child].end_time_unix_nano <= parent.end_time_unix_nano, child
    assert spans["decode"].end_time_unix_nano > spans["decode"].start_time_unix_nano
    assert spans["prefill"].end_time_unix_nano > spans["prefill"].start_time_unix_nano
    counts = {attribute.key: attribute.value.int_value for attribute in call.attributes}
    assert counts["gen_ai.usage.input_tokens"] == answer.usage.prompt_tokens
    assert counts["gen_ai.usage.output_tokens"] == answer.usage.completion_tokens
