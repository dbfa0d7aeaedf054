"""Rates of transformers on a model folder, as JSON: `by_transformers.py FOLDER`. Runs where torch and transformers are installed."""

import json
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM

TOKENS = 128


def main(folder: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map=None).to("cuda").eval()

    def tokens(streams: int, count: int) -> torch.Tensor:
        return torch.randint(256, 2000, (streams, count), device="cuda")

    def generate(streams: int) -> float:
        prompt = tokens(streams, 16)
        settings = {"do_sample": False, "min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "pad_token_id": 0}
        return streams * TOKENS / seconds(lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings))

    def read() -> float:
        prompt = tokens(1, 2048)
        return 2048 / seconds(lambda: model(prompt, logits_to_keep=1))

    def multiply() -> float:
        one, other = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        return 2 * 8192**3 / seconds(lambda: one @ other) / 1e12

    def seconds(work) -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    def median(once) -> float:
        once()
        return statistics.median(once() for _ in range(3))

    with torch.inference_mode():
        rates = {
            "decode": {str(streams): median(lambda: generate(streams)) for streams in (1, 8, 32)},
            "prefill": median(read),
            "teraflops": median(multiply),
            "torch": torch.__version__,
        }
    print(json.dumps(rates))


if __name__ == "__main__":
    main(sys.argv[1])
