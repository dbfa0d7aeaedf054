# The package installs PyTorch, about 3 GB.
# needs: guidellm
# speaks: OpenAI
# when: all
from question import QUESTION, ROOT

import json
import os
import pathlib
import subprocess
import sys
import tempfile

GUIDE = pathlib.Path(__file__).parents[3] / "manifests/guide"

with tempfile.TemporaryDirectory() as folder:
    data, report = pathlib.Path(folder) / "questions.jsonl", pathlib.Path(folder) / "report.json"
    data.write_text((json.dumps({"prompt": QUESTION}) + "\n") * 4)
    environment = {**os.environ, "HF_HOME": folder, "HF_HUB_OFFLINE": "1"}
    # No model is named: the program finds it in the server's list.
    command = [pathlib.Path(sys.executable).parent / "guidellm", "run", "--backend", f"kind=openai_http,target={ROOT}"]
    command += ["--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=4"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={GUIDE}", "--data", f"kind=json_file,path={data}"]
    command += ["--output", f"kind=json,path={report}", "--disable-console"]
    subprocess.run(command, env=environment, check=True)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] == 4 and totals["errored"] == 0, totals
    assert benchmark["metrics"]["output_token_count"]["successful"]["mean"] > 1, benchmark["metrics"]
