# needs: lm-eval[api]==0.4.13 transformers==5.23.0
# speaks: OpenAI
# when: all
from question import ROOT

import json
import os
import pathlib
import subprocess
import sys
import tempfile

TASKS = pathlib.Path(__file__).parent / "lm_eval_tasks"
GUIDE = pathlib.Path(__file__).parents[3] / "manifests/guide"


def measure(task, metric, kind, *arguments):
    """The result of a task, whose questions are in the file beside its definition."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HF_HOME": folder, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "lm_eval", "run", "--model", kind, "--tasks", task, "--include_path", TASKS]
        ran = [*command, "--output_path", folder, *arguments]
        subprocess.run(ran, cwd=TASKS, env=environment, check=True)
        (results,) = pathlib.Path(folder).rglob("results_*.json")
        return json.loads(results.read_text())["results"][task][metric]


chat = f"model=guide,base_url={ROOT}/v1/chat/completions"
assert measure("guide_answers", "exact_match,number", "local-chat-completions",
               "--model_args", chat, "--apply_chat_template") == 1
# Probabilities of given texts, by `echo` with `logprobs`. The prompts are lists of tokens.
completions = f"model=guide,base_url={ROOT}/v1/completions,tokenizer={GUIDE},num_concurrent=2"
assert measure("guide_chooses", "acc,none", "local-completions", "--model_args", completions) == 1
