"""Hooks of schemathesis: names that exist here in place of made-up ones, an end for streams, and one more check."""

import json
import os
import pathlib

import schemathesis

# The models of the coordinator that the test starts, by the beginning of the path.
MODELS = {
    "/v1/embeddings": "vectors", "/api/embed": "vectors", "/embed": "vectors",
    "/v1/rerank": "ranker", "/v1/score": "ranker", "/v1/classify": "ranker", "/predict": "ranker",
}
OF_MODELS = ("/v1/models/{id}", "/api/v1/models/{id}", "/api/v1/logs/{id}")


def this_process():
    """The owner of a lease that is this process."""
    stat = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    namespace = os.readlink("/proc/self/ns/pid")
    return {"pid": os.getpid(), "start_time": int(stat[19]), "pid_ns": namespace, "label": "schemathesis"}


def model_for(path):
    return next((model for start, model in MODELS.items() if path.startswith(start)), "guide")


def chosen(case):
    """Whether made-up names of a case are replaced: of three cases in four, the same ones in each run."""
    return len(repr(case.body)) % 4 != 0


@schemathesis.hook
def before_call(context, case, kwargs):
    """Edits a case; schemathesis looks again at whether it is valid then."""
    path = case.operation.path
    if case.headers and chosen(case):
        # No time is over and no task is unknown before a model has read the body.
        case.headers.pop("x-task", None)
        case.headers.pop("x-budget-s", None)
    if case.path_parameters and path.startswith(OF_MODELS) and chosen(case):
        case.path_parameters["id"] = "guide"
    if path == "/api/v1/tasks/{id}" and chosen(case):
        case.path_parameters["id"] = "chat"
    if path == "/dashboard/{id}" and chosen(case):
        case.path_parameters["id"] = "app.js"
    # A closed device would refuse every request behind it.
    if path == "/api/v1/devices/{id}/drain" and case.path_parameters["id"] in ("cpu", "auto"):
        case.path_parameters["id"] = "cuda:7"
    if path == "/api/v1/devices/{id}/open" and chosen(case):
        case.path_parameters["id"] = "cpu"
    if isinstance(case.body, dict):
        case.body = edited(path, dict(case.body), chosen(case))


def is_short(seconds):
    return isinstance(seconds, (int, float)) and 0.001 <= seconds < 60


def edited(path, body, is_chosen):
    if is_short(body.get("x_budget_s")):
        body["x_budget_s"] = 600
    if not is_chosen:
        return body
    if isinstance(body.get("owner"), dict):
        body["owner"] = this_process()
        if isinstance(body.get("any"), dict) and body.get("parts"):
            del body["any"]
        if isinstance(body.get("parts"), list):
            body["parts"] = [{"device": "cpu", "memory": "1MiB"}]
    if not path.startswith("/api/v1/") and isinstance(body.get("model"), (str, type(None))):
        body["model"] = model_for(path)
        if isinstance(body.get("x_task"), str):
            del body["x_task"]
        if body.get("messages") == [] and ("chat" in path or "messages" in path):
            body["messages"] = [{"role": "user", "content": "Which port?"}]
        if isinstance(body.get("n"), int) and body["n"] > 2:
            body["n"] = 2
    if path == "/api/v1/load" and isinstance(body.get("model_name"), (str, type(None))):
        body["path"], body["model_name"] = None, "guide"
        for field in ("device", "llamacpp_args", "llamacpp_backend", "vram"):
            body.pop(field, None)
        # Keys and values of a million tokens take their time.
        if isinstance(body.get("ctx_size"), int) and body["ctx_size"] > 4_096:
            body["ctx_size"] = 4_096
    return body


@schemathesis.check
def declared_code(context, response, case):
    """An error's code is one of those that the description has for its status."""
    if response.status_code < 400:
        return
    declared = case.operation.definition.raw["responses"].get(str(response.status_code), {})
    try:
        error = json.loads(response.content)["error"]
    except (ValueError, TypeError, KeyError):
        return
    code = error.get("code") if isinstance(error, dict) else None
    if code is None or response.status_code == 405:
        return
    assert code in declared.get("x-codes", []), f"the code '{code}' is not declared for {response.status_code}"
