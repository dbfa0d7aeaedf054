"""Makes the golden cases of models that paint: tiny random pipelines with the latent pictures and the pictures of `diffusers`.

    VENV/bin/pip install -r scripts/reference/requirements.txt diffusers==0.42.1 accelerate pillow
    VENV/bin/python scripts/reference/pictures.py [CASE ...] [--models DIR]

Each case becomes worker/candle/tests/pictures/CASE.json with these fields:

    case, diffusers, transformers, torch
    files      the texts of the folder's files beside the weights, by their paths
    weights    the weight files by their paths: a seed and [name, shape, mean, scale] of every tensor, by families.py's rule
    painted    requests with the latent pictures of all seeds, and the pictures' bytes in base64 where they are compared

Pictures to begin with, and masks, are made by a rule (`beginning`, `masked`). --models also writes DIR/CASE, a folder that the package
loads.
"""

import base64
import json
import logging
import shutil
import sys
import warnings
from pathlib import Path

import diffusers
import numpy
import torch
import transformers
from PIL import Image

warnings.filterwarnings("ignore")
diffusers.logging.set_verbosity_error()
transformers.logging.set_verbosity_error()
diffusers.logging.disable_progress_bar()
logging.disable(logging.WARNING)
from families import entry_of, tensor_of
from safetensors import safe_open
from safetensors.torch import save_file
from schedulers import CLASSES, XL
from vits import FIXED, make_all, short

OUT = Path(__file__).resolve().parents[2] / "worker" / "candle" / "tests" / "pictures"
SPEC = dict(zero_centred=None, rules={
    r"token_embedding|shared|embed_tokens": FIXED(0, 0.8), r"position_embedding": FIXED(0, 0.3), r"norm\w*(\.\d+)?\.weight$|norm_[qk]\.weight|norm_added_[qk]\.weight": FIXED(1, 0.3), r"bias$": FIXED(0, 0.15),
    r"to_[qk]|add_[qk]_proj": (None, dict(gain=1.6)), r"quant_conv|logvar": (None, dict(gain=1.0)), r"decoder\.conv_out": (None, dict(gain=0.6)), r"relative_attention_bias": FIXED(0, 0.5), r"pos_embed$": FIXED(0, 0.4), r"weight$": (None, dict(gain=1.2)),
})
LETTERS = list("abcdefghijklmnopqrstuvwxyz'.,!0123456789")
WORDS = ["a c", "ca t</w>", "o n</w>", "t h", "th e</w>", "c a", "b l", "u e</w>", "bl ue</w>", "d o", "do g</w>"]
TEXT = dict(hidden_size=24, intermediate_size=40, num_attention_heads=3, num_hidden_layers=2, max_position_embeddings=16, hidden_act="quick_gelu", projection_dim=20, bos_token_id=0, eos_token_id=1, pad_token_id=1)
UNET = dict(sample_size=8, in_channels=4, out_channels=4, block_out_channels=(16, 24, 32), layers_per_block=1, norm_num_groups=8, cross_attention_dim=24, attention_head_dim=(2, 3, 4),
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"))
VAE = dict(in_channels=3, out_channels=3, block_out_channels=(8, 12, 16), down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, latent_channels=4, norm_num_groups=4, sample_size=32)
FLOW = dict(num_train_timesteps=1000, shift=3.0)
FLUX_FLOW = FLOW | dict(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=16, max_image_seq_len=64)
T5 = dict(d_model=28, d_kv=6, num_heads=3, d_ff=40, num_layers=2, feed_forward_proj="gated-gelu", relative_attention_num_buckets=8, relative_attention_max_distance=20)
FLUX_VAE = dict(latent_channels=5, use_quant_conv=False, use_post_quant_conv=False, scaling_factor=0.36, shift_factor=0.11)
FLUX = dict(in_channels=20, num_layers=2, num_single_layers=3, num_attention_heads=3, attention_head_dim=12, axes_dims_rope=(2, 4, 6), joint_attention_dim=28, pooled_projection_dim=24)
SD3 = dict(sample_size=8, patch_size=2, in_channels=5, out_channels=5, num_layers=3, num_attention_heads=2, attention_head_dim=12, joint_attention_dim=44, caption_projection_dim=24, pooled_projection_dim=32, pos_embed_max_size=9)
XL_SCHEDULER = {key: value for key, value in XL.items() if key != "_class_name"}
PNDM = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", num_train_timesteps=1000, set_alpha_to_one=False, skip_prk_steps=True, steps_offset=1, clip_sample=False)


def ask(prompt="a blue cat on the dog", seeds=(7,), steps=5, guidance=4.0, **fields):
    """`shown`: whether the picture is compared, too."""
    usual = dict(negative=None, width=40, height=32, scheduler=None, image=None, strength=None, mask=False, clip_skip=None, most=None, shown=False)
    return usual | dict(prompt=prompt, seeds=list(seeds), steps=steps, guidance=guidance) | fields


def of_all(names, **fields):
    return [ask(scheduler=name, **fields) for name in names]


def case(kind, asked, parts, scheduler=None, drop=(), **fields):
    """`drop`: files that are taken out again, and for tokenizers replaced by older ones."""
    return dict(kind=kind, asked=asked, parts=parts, scheduler=scheduler or ("PNDMScheduler", PNDM), drop=drop, fields=fields)


BEGUN = [dict(image=5, strength=0.6), dict(image=5, strength=1.0)]
NAMES = [name for name in CLASSES if not name.startswith("flow")]
CASES = {
    "sd-plain": case("sd", [ask(shown=True), ask(negative="the dog", seeds=(3, 4), shown=True), ask(guidance=1.0, prompt=""), ask(width=48, height=24), ask(prompt="the cat " * 9)] + of_all(NAMES, steps=4)
                     + [ask(image=5, strength=0.6, shown=True), ask(image=6, strength=0.8, scheduler="euler_a", seeds=(1, 2)), ask(image=5, strength=0.5, scheduler="dpm++_2m", steps=7)]
                     + [ask(image=5, strength=1.0, mask=True, shown=True), ask(image=5, strength=0.7, mask=True, scheduler="euler_a", seeds=(8, 9)), ask(image=5, strength=0.7, mask=True, scheduler="unipc", steps=6)],
                     dict(unet={}, vae={}, text={}), drop=("tokenizer/tokenizer.json",)),
    "sd-other": case("sd", [ask(shown=True), ask(seeds=(1, 2, 3)), ask(image=5, strength=0.7)],
                     dict(unet=dict(use_linear_projection=True, layers_per_block=(1, 2, 1), attention_head_dim=4, cross_attention_dim=32, transformer_layers_per_block=2, flip_sin_to_cos=False, freq_shift=1, norm_eps=1e-4, block_out_channels=(16, 16, 32)),
                          vae=dict(block_out_channels=(8, 16), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, scaling_factor=0.3, layers_per_block=2), text=dict(hidden_size=32, num_attention_heads=4, hidden_act="gelu", num_hidden_layers=3)),
                     scheduler=("DDIMScheduler", PNDM | dict(prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing"))),
    "sd-inpaint": case("sd", [ask(image=5, strength=1.0, mask=True, shown=True), ask(image=5, strength=0.6, mask=True, scheduler="euler_a", seeds=(8, 9))], dict(unet=dict(in_channels=9), vae={}, text={})),
    "xl-plain": case("xl", [ask(shown=True), ask(negative="the dog", seeds=(3, 4)), ask(guidance=0.0, steps=1), ask(clip_skip=1, scheduler="dpm++_2m_karras"), ask(image=5, strength=0.6, seeds=(3, 4))],
                     dict(unet=dict(cross_attention_dim=40, addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=68, transformer_layers_per_block=(1, 2, 1), use_linear_projection=True, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
                                    up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")), vae=dict(scaling_factor=0.13025), text={}, text_2=dict(hidden_size=16, num_attention_heads=4, hidden_act="gelu", num_hidden_layers=3)), scheduler=("EulerDiscreteScheduler", XL_SCHEDULER)),
    "flux-dev": case("flux", [ask(shown=True), ask(most=20, seeds=(3, 4), guidance=1.5, width=48, height=24), ask(prompt="the cat " * 9, most=12, steps=3), ask(image=5, strength=0.5, most=20, shown=True), ask(image=6, strength=0.9, seeds=(1, 2), most=20)],
                     dict(transformer=dict(guidance_embeds=True), vae=FLUX_VAE, text={}, t5={}), scheduler=("FlowMatchEulerDiscreteScheduler", FLUX_FLOW)),
    "flux-schnell": case("flux", [ask(most=256, shown=True, steps=4), ask(guidance=0.0, most=16, steps=1, seeds=(1, 2)), ask(image=5, strength=1.0, most=16)],
                         dict(transformer=dict(num_layers=1, num_single_layers=2, num_attention_heads=4, attention_head_dim=16, axes_dims_rope=(4, 4, 8), joint_attention_dim=16, pooled_projection_dim=32), vae=FLUX_VAE,
                              text=dict(hidden_size=32, num_attention_heads=4, hidden_act="gelu", num_hidden_layers=3), t5=dict(d_model=16, feed_forward_proj="relu", num_layers=3, num_heads=2)), scheduler=("FlowMatchEulerDiscreteScheduler", FLOW | dict(shift=1.0, use_dynamic_shifting=False))),
    "sd3-plain": case("sd3", [ask(shown=True), ask(negative="the dog", seeds=(3, 4), most=20, steps=3), ask(guidance=1.0, prompt="", most=20), ask(width=64, height=24, most=20), ask(clip_skip=1, most=20), ask(prompt="the cat " * 9, most=12, steps=3), ask(image=5, strength=0.5, most=20, shown=True)],
                      dict(transformer={}, vae=FLUX_VAE, text={}, text_2=dict(hidden_size=16, num_attention_heads=4, hidden_act="gelu", num_hidden_layers=3, projection_dim=12), t5=dict(d_model=44)), scheduler=("FlowMatchEulerDiscreteScheduler", FLOW)),
    "sd3-other": case("sd3", [ask(shown=True, most=20), ask(negative="the dog", seeds=(3, 4), most=1), ask(image=6, strength=0.7, most=20)],
                      dict(transformer=dict(dual_attention_layers=(0, 1), qk_norm="rms_norm", num_layers=4, num_attention_heads=3, attention_head_dim=8), vae=FLUX_VAE | dict(shift_factor=0.0609, scaling_factor=0.5), text={},
                           text_2=dict(hidden_size=16, num_attention_heads=4, hidden_act="gelu", num_hidden_layers=3, projection_dim=12), t5=None), scheduler=("FlowMatchEulerDiscreteScheduler", FLOW | dict(shift=1.5))),
}


def tokenizer():
    vocab = {"<|startoftext|>": 0, "<|endoftext|>": 1}
    for token in LETTERS + [letter + "</w>" for letter in LETTERS] + [word.replace(" ", "") for word in WORDS]:
        vocab.setdefault(token, len(vocab))
    return transformers.CLIPTokenizer(vocab=vocab, merges=[tuple(word.split()) for word in WORDS], model_max_length=16), vocab


def clip(sizes, projects=False):
    kind = transformers.CLIPTextModelWithProjection if projects else transformers.CLIPTextModel
    return kind(transformers.CLIPTextConfig(**(TEXT | dict(vocab_size=len(tokenizer()[1])) | sizes)))


def sd(spec):
    parts = spec["parts"]
    scheduler = getattr(diffusers, spec["scheduler"][0])(**{key: value for key, value in spec["scheduler"][1].items() if key in getattr(diffusers, spec["scheduler"][0])._get_init_keys(getattr(diffusers, spec["scheduler"][0]))})
    return diffusers.StableDiffusionPipeline(vae=diffusers.AutoencoderKL(**(VAE | parts["vae"])), text_encoder=clip(parts["text"]), tokenizer=tokenizer()[0], unet=diffusers.UNet2DConditionModel(**(UNET | parts["unet"])),
                                             scheduler=scheduler, safety_checker=None, feature_extractor=None, requires_safety_checker=False)


def xl(spec):
    parts = spec["parts"]
    scheduler = diffusers.EulerDiscreteScheduler.from_config(spec["scheduler"][1])
    return diffusers.StableDiffusionXLPipeline(vae=diffusers.AutoencoderKL(**(VAE | parts["vae"])), text_encoder=clip(parts["text"]), text_encoder_2=clip(parts["text_2"], True), tokenizer=tokenizer()[0], tokenizer_2=tokenizer()[0],
                                               unet=diffusers.UNet2DConditionModel(**(UNET | parts["unet"])), scheduler=scheduler, add_watermarker=False)


def t5_tokenizer():
    words = ["\u2581the", "\u2581cat", "\u2581a", "\u2581blue", "og", "at"]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -3.0)] + [(letter, -4.0 - at / 50) for at, letter in enumerate(LETTERS)] + [(word, -2.0 - at / 20) for at, word in enumerate(words)]
    return transformers.T5Tokenizer(vocab=pieces, extra_ids=0), len(pieces)


def t5(sizes):
    return transformers.T5EncoderModel(transformers.T5Config(**(T5 | dict(vocab_size=t5_tokenizer()[1], dropout_rate=0.0) | sizes)))


def flux(spec):
    parts = spec["parts"]
    return diffusers.FluxPipeline(scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**spec["scheduler"][1]), vae=diffusers.AutoencoderKL(**(VAE | parts["vae"])), text_encoder=clip(parts["text"]), tokenizer=tokenizer()[0],
                                  text_encoder_2=t5(parts["t5"]), tokenizer_2=t5_tokenizer()[0], transformer=diffusers.FluxTransformer2DModel(**(FLUX | parts["transformer"])))


def sd3(spec):
    parts = spec["parts"]
    third = dict(text_encoder_3=None, tokenizer_3=None) if parts["t5"] is None else dict(text_encoder_3=t5(parts["t5"]), tokenizer_3=t5_tokenizer()[0])
    return diffusers.StableDiffusion3Pipeline(scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**spec["scheduler"][1]), vae=diffusers.AutoencoderKL(**(VAE | parts["vae"])), text_encoder=clip(parts["text"], True), tokenizer=tokenizer()[0],
                                              text_encoder_2=clip(parts["text_2"], True), tokenizer_2=tokenizer()[0], transformer=diffusers.SD3Transformer2DModel(**(SD3 | parts["transformer"])), **third)


PIPELINES = {"flux": (flux, diffusers.FluxPipeline, diffusers.FluxImg2ImgPipeline, None),
             "sd3": (sd3, diffusers.StableDiffusion3Pipeline, diffusers.StableDiffusion3Img2ImgPipeline, None),
             "xl": (xl, diffusers.StableDiffusionXLPipeline, diffusers.StableDiffusionXLImg2ImgPipeline, diffusers.StableDiffusionXLInpaintPipeline), 
             "sd": (sd, diffusers.StableDiffusionPipeline, diffusers.StableDiffusionImg2ImgPipeline, diffusers.StableDiffusionInpaintPipeline)}


def write_folder(folder, spec, seed):
    torch.manual_seed(0)
    PIPELINES[spec["kind"]][0](spec).save_pretrained(folder)
    # As it is written by hand, with fields of other classes.
    path = folder / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps(dict(_class_name=spec["scheduler"][0]) | spec["scheduler"][1], indent=2))
    weights = {}
    for path in sorted(folder.glob("*/*.safetensors")):
        with safe_open(path, "pt") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}
        entries = [entry_of(name, shape, SPEC) for name, shape in sorted(shapes.items())]
        save_file({entry[0]: tensor_of(entry, seed) for entry in entries}, path, metadata={"format": "pt"})
        weights[str(path.relative_to(folder))] = dict(seed=seed, tensors=entries)
    for name in spec["drop"]:
        path = folder / name
        tokens = json.loads(path.read_text())["model"]
        path.with_name("vocab.json").write_text(json.dumps(tokens["vocab"], ensure_ascii=False))
        path.with_name("merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(merge) for merge in tokens["merges"]) + "\n")
    texts = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in sorted(folder.glob("**/*.json"))}
    texts |= {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.glob("*/merges.txt"))}
    for name in spec["drop"]:
        del texts[name]
    return texts, weights


def beginning(number, width, height):
    y, x, channel = numpy.meshgrid(numpy.arange(height), numpy.arange(width), numpy.arange(3), indexing="ij")
    return Image.fromarray(((x * (number + 2) + y * 13 + channel * 50 + x * y % 17 * 3) % 256).astype(numpy.uint8))


def masked(width, height):
    y, x = numpy.meshgrid(numpy.arange(height), numpy.arange(width), indexing="ij")
    return Image.fromarray(numpy.where((x >= width // 3) & (y >= 5), 255, 0).astype(numpy.uint8))


def paint(folder, spec, request, output):
    _, plain, begun, inpaint = PIPELINES[spec["kind"]]
    pipe = plain.from_pretrained(folder, **(dict(text_encoder_3=None, tokenizer_3=None) if spec["kind"] == "sd3" and spec["parts"]["t5"] is None else {}))
    kind = inpaint if request["mask"] else begun if request["image"] else plain
    if kind is not plain:
        pipe = kind.from_pipe(pipe)
    if request["scheduler"]:
        changes = dict(use_karras_sigmas=True) if request["scheduler"].endswith("karras") else {}
        wanted = getattr(diffusers, CLASSES[request["scheduler"]])
        if wanted is not type(pipe.scheduler) or changes:
            pipe.scheduler = wanted.from_config(pipe.scheduler.config, **changes)
    pipe.set_progress_bar_config(disable=True)
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in request["seeds"]]
    fields = dict(prompt=request["prompt"], num_inference_steps=request["steps"], guidance_scale=request["guidance"], num_images_per_prompt=len(generators), generator=generators if len(generators) > 1 else generators[0], output_type=output)
    takes = kind.__call__.__wrapped__.__code__.co_varnames[:kind.__call__.__wrapped__.__code__.co_argcount] if hasattr(kind.__call__, "__wrapped__") else kind.__call__.__code__.co_varnames
    size = dict(width=request["width"], height=request["height"])
    if "width" in takes:
        fields |= size
    if request["negative"] is not None:
        fields["negative_prompt"] = request["negative"]
    if request["clip_skip"] is not None:
        fields["clip_skip"] = request["clip_skip"]
    if request["most"] is not None:
        fields["max_sequence_length"] = request["most"]
    if request["image"]:
        fields |= dict(image=beginning(request["image"], **size), strength=request["strength"])
    if request["mask"]:
        fields["mask_image"] = masked(**size)
    with torch.no_grad():
        images = pipe(**fields).images
    # Their latent pictures are rows of patches.
    return pipe._unpack_latents(images, request["height"], request["width"], pipe.vae_scale_factor) if spec["kind"] == "flux" and output == "latent" else images


def painted(folder, spec):
    answers = []
    for request in spec["asked"]:
        latents = paint(folder, spec, request, "latent")
        spread = latents.std()
        assert torch.isfinite(latents).all() and spread > 0.05, (request, spread)
        answer = {key: value for key, value in request.items() if key != "shown"} | dict(latents=[float(f"{value:.5g}") for value in latents.flatten().tolist()], pictures=None)
        if request["shown"]:
            images = [numpy.array(image) for image in paint(folder, spec, request, "pil")]
            print(f"  {request['scheduler']}: latents {spread:.3f}, pictures {images[0].mean():.1f} +- {images[0].std():.1f}")
            assert all(image.std() > 10 for image in images)
            answer["pictures"] = [base64.b64encode(image.tobytes()).decode() for image in images]
        answers.append(answer)
    return answers


def make(name, spec, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files, weights = write_folder(folder, spec, 1)
    fields = dict(case=name, diffusers=diffusers.__version__, transformers=transformers.__version__, torch=torch.__version__, files=files, weights=weights, painted=painted(folder, spec))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"  {(OUT / name).with_suffix('.json').stat().st_size} bytes")


if __name__ == "__main__":
    make_all(sys.argv[1:], CASES, make)
