"""What the scripts share that make golden cases one by one: their arguments, and the files."""

import argparse
import json
import tempfile
from pathlib import Path

import torch
import transformers


def write(out, name, fields, more=""):
    """Writes a case with a line for each field."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [f'"{key}":{json.dumps(value, separators=(",", ":"))}' for key, value in fields.items()]
    file = out / f"{name}.json"
    file.write_text("{" + ",\n".join(lines) + "}\n")
    print(name, file.stat().st_size, "bytes" + more, flush=True)


def run(names, make):
    """Makes the cases that the command line names, or all. `make` gets a name, a folder for the model, and the folder of --models."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--models", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in names:
        if arguments.names and name not in arguments.names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            make(name, (arguments.models or Path(scratch)) / name, arguments.models)
