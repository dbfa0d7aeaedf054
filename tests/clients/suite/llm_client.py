# needs: llm==0.36
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect

import os
import pathlib
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as folder:
    models = pathlib.Path(folder) / "extra-openai-models.yaml"
    models.write_text(f"- model_id: boss\n  model_name: guide\n  api_base: {ROOT}/v1\n  api_key_name: boss\n")
    environment = {**os.environ, "LLM_USER_PATH": folder}
    command = [sys.executable, "-m", "llm", "-m", "boss", "--key", "unused", "-o", "temperature", "0", QUESTION]
    expect(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
