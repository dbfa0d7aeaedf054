"""Paints by `diffusers`, beside which `scripts/bench image` measures: python3 image_peer.py FOLDER THREADS

Each line of the input is {"size", "steps", "seed"}; each line of the output has `seconds` of the whole, and `step`, those of a step. The first line
of the output says the libraries' versions, and the bytes of the weights. `--make FOLDER` writes a pipeline of random weights: the blocks of Stable
Diffusion 1.5 with half as many channels.
"""

import json
import logging
import sys
import time
import warnings
from pathlib import Path

import diffusers
import torch
import transformers

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
diffusers.logging.disable_progress_bar()


def make(folder):
    from pictures import PNDM, tokenizer

    torch.manual_seed(1)
    words, vocabulary = tokenizer()
    words.model_max_length = 77
    unet = diffusers.UNet2DConditionModel(sample_size=64, block_out_channels=(160, 320, 640, 640), cross_attention_dim=768, attention_head_dim=8)
    vae = diffusers.AutoencoderKL(block_out_channels=(64, 128, 256, 256), down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
                                  layers_per_block=2, latent_channels=4, sample_size=512)
    text = transformers.CLIPTextModel(transformers.CLIPTextConfig(
        vocab_size=len(vocabulary), hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=12, max_position_embeddings=77,
        bos_token_id=0, eos_token_id=1, pad_token_id=1))
    diffusers.StableDiffusionPipeline(
        vae=vae, text_encoder=text, tokenizer=words, unet=unet, scheduler=diffusers.DDIMScheduler(**{key: value for key, value in PNDM.items() if key != "skip_prk_steps"}),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False).save_pretrained(folder)


def serve(folder, threads):
    torch.set_num_threads(threads)
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    parts = [pipeline.unet, pipeline.vae, pipeline.text_encoder]
    weights = sum(number.numel() * number.element_size() for part in parts for number in part.parameters())
    print(json.dumps({"version": f"diffusers {diffusers.__version__}, torch {torch.__version__}", "weights": weights}), flush=True)
    for line in sys.stdin:
        asked, times = json.loads(line), []

        def ended(_, __, ___, kept):
            times.append(time.perf_counter())
            return kept

        begun = time.perf_counter()
        pipeline("a blue cat on the dog", height=asked["size"], width=asked["size"], num_inference_steps=asked["steps"],
                 generator=torch.Generator().manual_seed(asked["seed"]), callback_on_step_end=ended)
        step = (times[-1] - times[0]) / (len(times) - 1)
        print(json.dumps({"seconds": time.perf_counter() - begun, "step": step}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make(Path(sys.argv[2]))
    else:
        serve(Path(sys.argv[1]), int(sys.argv[2]))
