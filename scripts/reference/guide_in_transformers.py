#!/usr/bin/env python3
"""The guide's greedy answers in transformers beside those of this project's decoder, for every held-out question.

    scripts/reference/guide_in_transformers.py [--trainer target/release/model-boss-train] [--package manifests/guide]

Run it in an environment with scripts/reference/requirements.txt. Exit code 1 if any answer differs.
"""

import argparse
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def ours(trainer, package):
    """Questions and answers from the output of `eval --all`: a line `right: …` or `wrong: …`, then the answer, indented."""
    printed = subprocess.run([trainer, "eval", package, "--all"], check=True, capture_output=True, text=True).stdout
    question, lines = None, []
    for line in [*printed.splitlines(), "end: "]:
        head, _, rest = line.partition(": ")
        if head in ("right", "wrong", "end") or not line.startswith(" "):
            if question is not None:
                yield question, "\n".join(lines)
            question, lines = (rest, []) if head in ("right", "wrong") else (None, [])
        else:
            lines.append(line.strip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainer", default="target/release/model-boss-train")
    parser.add_argument("--package", default="manifests/guide")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.package)
    model = AutoModelForCausalLM.from_pretrained(args.package, dtype=torch.float32).eval()
    same = asked = 0
    for question, expected in ours(args.trainer, args.package):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            tokens = model.generate(**prompt, max_new_tokens=160, do_sample=False, pad_token_id=tokenizer.eos_token_id)
        answer = tokenizer.decode(tokens[0][prompt["input_ids"].shape[1]:], skip_special_tokens=True).strip()
        asked += 1
        same += answer == expected
        if answer != expected:
            print(f"differs: {question}\n  ours: {expected}\n  transformers: {answer}")
    print(f"{same} of {asked} answers are the same")
    return 0 if same == asked > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
