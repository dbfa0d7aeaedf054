# needs: aider-chat==0.86.2
# speaks: OpenAI
# when: all
from question import QUESTION, ROOT, expect

import os
import pathlib
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as folder:
    # The reminder is put into the system prompt: after the question, it would hide the question from so small a model.
    settings = pathlib.Path(folder) / "settings.yml"
    settings.write_text("- name: openai/guide\n  reminder: sys\n  use_temperature: true\n")
    environment = {**os.environ, "HOME": folder, "OPENAI_API_BASE": ROOT + "/v1", "OPENAI_API_KEY": "unused"}
    command = [sys.executable, "-m", "aider", "--model", "openai/guide", "--model-settings-file", settings]
    command += ["--edit-format", "ask", "--no-git", "--yes-always", "--no-check-update", "--analytics-disable"]
    for streaming in ["--stream", "--no-stream"]:
        asked = [*command, "--no-show-model-warnings", "--no-pretty", streaming, "--message", QUESTION]
        expect(subprocess.run(asked, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout)
