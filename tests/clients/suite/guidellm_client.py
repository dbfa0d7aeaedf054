# Later versions install PyTorch.
# needs: guidellm<0.4
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
    # It finds out by itself which model there is.
    command = [pathlib.Path(sys.executable).parent / "guidellm", "benchmark", "run", "--target", ROOT, "--data", data]
    command += ["--processor", GUIDE, "--rate-type", "concurrent", "--rate", "2", "--max-requests", "4"]
    subprocess.run([*command, "--disable-progress", "--output-path", report], env=environment, check=True)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["run_stats"]["requests_made"]
    assert totals["successful"] == 4 and totals["errored"] == 0, totals
    assert benchmark["metrics"]["output_token_count"]["successful"]["mean"] > 1, benchmark["metrics"]
