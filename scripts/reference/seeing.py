"""Makes the golden cases of models that see: tiny random models with the logits of `transformers` for prompts with images.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install -r scripts/reference/requirements.txt torchvision pillow
    VENV/bin/python scripts/reference/seeing.py [CASE ...] [--models DIR]

Each case becomes worker/candle/tests/seeing/CASE.json with these fields:

    case, transformers
    files      the texts of the folder's files beside the weights that say how images are read
    weights    a seed and [name, shape, mean, scale] of every tensor, by families.py's rule
    images     width and height of each image; their pixels are made by `image_of`
    prompts    of each: the numbers of its images, the texts that took the place of their marks, the tokens, the last row of
               logits, and the greedy tokens that follow

Images are resized by Pillow; the processor of torchvision, which differs by one unit of a pixel at most, has to give as many
tokens. --models also writes DIR/CASE, a folder that transformers and this project's worker load, with a tokenizer of bytes and a
chat template.
"""

import json
import shutil
from pathlib import Path

import cases
import numpy
import torch
import transformers
from encoders import rewrite
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

OUT = Path(__file__).resolve().parents[2] / "worker" / "candle" / "tests" / "seeing"
SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 320
TEXT = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCABULARY,
            max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0)
FOLLOWED = 6
# Pillow 13 takes the columns of high images first, which torchvision and the worker do not: wide ones have one order.
IMAGES = [(40, 28), (90, 61), (28, 28)]
# The numbers of the images of each prompt, between texts.
PROMPTS = [[0], [1, 0], [2, 1], []]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}MARK{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def image_of(width, height):
    """Smooth colours with some edges; the test makes the same."""
    y, x = numpy.mgrid[0:height, 0:width].astype(numpy.int64)
    planes = [(x * 5 + y * 3) % 256, (x * x // 7 + y * 2) % 256, ((x // 9 + y // 7) % 2) * 160 + (x + y) % 64]
    return Image.fromarray(numpy.stack(planes, axis=2).astype(numpy.uint8), "RGB")


def tokenizer_of(names, extra):
    """A tokenizer of bytes with these special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: at for at, token in enumerate(SPECIAL + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL + names])
    assert tokenizer.get_vocab_size() <= VOCABULARY, tokenizer.get_vocab_size()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", extra_special_tokens=extra or {}
    )


QWEN = dict(names=["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
            extra=dict(image_token="<|image_pad|>", video_token="<|video_pad|>"),
            mark="<|vision_start|><|image_pad|><|vision_end|>", processor="Qwen2_5_VLProcessor", images="Qwen2VLImageProcessor",
            video="Qwen2VLVideoProcessor")
QWEN_VISION = dict(depth=4, hidden_size=32, num_heads=2, intermediate_size=40, patch_size=4, spatial_merge_size=2, temporal_patch_size=2,
                   out_hidden_size=32)
QWEN_IMAGES = dict(patch_size=4, merge_size=2, temporal_patch_size=2, size=dict(shortest_edge=8 * 8 * 4, longest_edge=8 * 8 * 60))


def ids(tokenizer, **names):
    return {key: tokenizer.convert_tokens_to_ids(name) for key, name in names.items()}


def qwen(model_type, text, vision, images=None, top=None):
    def config(tokenizer):
        tokens = ids(tokenizer, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>",
                     vision_start_token_id="<|vision_start|>", vision_end_token_id="<|vision_end|>")
        return transformers.AutoConfig.for_model(model_type, text_config={**TEXT, **text}, vision_config={**QWEN_VISION, **vision},
                                                 **tokens, **(top or {}))

    return dict(QWEN, config=config, processing={**QWEN_IMAGES, **(images or {})})


SIGLIP = dict(hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=32, image_size=32, patch_size=4)
LLAMA = dict(model_type="llama", **TEXT)


def gemma3(text=None, vision=None, images=None, tokens=16):
    names = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]

    def config(tokenizer):
        numbers = ids(tokenizer, image_token_id="<image_soft_token>", boi_token_id="<start_of_image>", eoi_token_id="<end_of_image>")
        inner = dict(TEXT, head_dim=8, query_pre_attn_scalar=8, sliding_window=12, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
        return transformers.AutoConfig.for_model("gemma3", text_config={**inner, **(text or {})}, mm_tokens_per_image=tokens,
                                                 vision_config={**SIGLIP, **dict(model_type="siglip_vision_model", vision_use_head=False), **(vision or {})}, **numbers)

    return dict(names=names, extra=dict(boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>"),
                mark="<start_of_image>", processor="Gemma3Processor", images="Gemma3ImageProcessor", config=config,
                processing={**dict(size=dict(height=32, width=32)), **(images or {})}, processor_fields=dict(image_seq_length=tokens))


def idefics3(model_type, vision=None, images=None, scale=2, places=16, text=None):
    names = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
    names += [f"<row_{row + 1}_col_{column + 1}>" for row in range(4) for column in range(4)]
    def config(tokenizer):
        return transformers.AutoConfig.for_model(model_type, text_config={**LLAMA, **(text or {})}, scale_factor=scale,
                                                 vision_config={**SIGLIP, **(vision or {})}, **ids(tokenizer, image_token_id="<image>"))

    # SmolVLM's processor does the same with images, and needs another package for videos.
    return dict(names=names, extra=dict(image_token="<image>"), mark="<image>", processor="Idefics3Processor", images="Idefics3ImageProcessor",
                config=config, processing={**dict(size=dict(longest_edge=64), max_image_size=dict(longest_edge=32)), **(images or {})},
                processor_fields=dict(image_seq_len=places))


def llava(vision, text=None, images="CLIPImageProcessor", processing=None, fields=None, top=None):
    def config(tokenizer):
        return transformers.AutoConfig.for_model("llava", text_config={**LLAMA, **(text or {})}, vision_config={**SIGLIP, **vision},
                                                 **ids(tokenizer, image_token_id="<image>"), **(top or {}))

    sizes = dict(size=dict(shortest_edge=32), crop_size=dict(height=32, width=32))
    return dict(names=["<image>"], extra=dict(image_token="<image>"), mark="<image>\n", processor="LlavaProcessor", images=images, config=config,
                processing=sizes if processing is None else processing,
                processor_fields={**dict(patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1), **(fields or {})})


CASES = {
    "gemma3": gemma3(),
    "gemma3-odd": gemma3(dict(layer_types=["full_attention", "sliding_attention", "full_attention"], sliding_window=40), dict(image_size=36, hidden_act="gelu"),
                         dict(size=dict(height=36, width=36), resample=3, image_mean=[0.4, 0.5, 0.6]), tokens=9),
    "idefics3": idefics3("idefics3"),
    "smolvlm": idefics3("smolvlm", dict(image_size=24, hidden_act="gelu"), dict(do_image_splitting=False), scale=4, places=4),
    "llava": llava(dict(model_type="clip_vision_model")),
    "llava-siglip": llava(dict(model_type="siglip_vision_model", vision_use_head=False), dict(model_type="qwen2"), "SiglipImageProcessor",
                          dict(size=dict(height=32, width=32)), dict(vision_feature_select_strategy="full", num_additional_image_tokens=0),
                          dict(vision_feature_layer=[-1, 1], vision_feature_select_strategy="full", multimodal_projector_bias=False, projector_hidden_act="silu")),
    "llava-padded": llava(dict(model_type="clip_vision_model", hidden_act="gelu", layer_norm_eps=1e-3), None, "LlavaImageProcessor",
                          dict(size=dict(height=32, width=32), do_pad=True, do_center_crop=False), None, dict(vision_feature_layer=-1)),
    "qwen2_5_vl": qwen("qwen2_5_vl", dict(rope_parameters=dict(rope_type="default", mrope_section=[1, 1, 2], rope_theta=1e4)),
                       dict(window_size=16, fullatt_block_indexes=[1, 3])),
    "qwen2_5_vl-tied": qwen("qwen2_5_vl", dict(rope_parameters=dict(rope_type="default", mrope_section=[2, 1, 1], rope_theta=1e4),
                                               use_sliding_window=True, sliding_window=24, max_window_layers=1),
                            dict(window_size=24, fullatt_block_indexes=[0], hidden_act="gelu", temporal_patch_size=1),
                            dict(temporal_patch_size=1, do_normalize=False), dict(tie_word_embeddings=True)),
    "qwen3_vl": qwen("qwen3_vl", dict(head_dim=16, rope_parameters=dict(rope_type="default", mrope_section=[4, 2, 2], rope_theta=1e4)),
                     dict(num_position_embeddings=36, deepstack_visual_indexes=[0, 2])),
    "qwen3_vl-biases": qwen("qwen3_vl", dict(head_dim=8, attention_bias=True, rope_parameters=dict(rope_type="default", mrope_section=[2, 1, 1], rope_theta=1e4)),
                            dict(num_position_embeddings=16, deepstack_visual_indexes=[2, 1, 3], num_heads=4, hidden_act="gelu"),
                            dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)),
}


def processor_of(spec, tokenizer, backend):
    suffix = "" if backend == "torchvision" else "Pil"
    images = getattr(transformers, spec["images"] + suffix)(**spec["processing"])
    more = {}
    if spec.get("video"):
        more["video_processor"] = getattr(transformers, spec["video"])()
    template = TEMPLATE.replace("MARK", spec["mark"])
    return getattr(transformers, spec["processor"])(image_processor=images, tokenizer=tokenizer, chat_template=template,
                                                    **more, **spec.get("processor_fields", {}))


def text_of(numbers, spec):
    text = "<|im_start|>user\n"
    for at, number in enumerate(numbers):
        text += f"Image {at}: " + spec["mark"]
    return text + "What is it?<|im_end|>\n<|im_start|>assistant\n"


def inputs_of(processor, numbers, spec):
    text, images = text_of(numbers, spec), [image_of(*IMAGES[number]) for number in numbers]
    if not images:
        return processor(text=[text], return_tensors="pt"), []
    inputs = processor(text=[text], images=[images], return_tensors="pt", return_text_replacement_offsets=True)
    replaced = inputs.pop("text_replacement_offsets")[0]
    return inputs, [part["replacement"] if "replacement" in part else part["new_text"] for part in replaced]


def answer_of(model, inputs):
    with torch.no_grad():
        logits = model(**inputs).logits[0, -1]
        followed = model.generate(**inputs, max_new_tokens=FOLLOWED, do_sample=False, eos_token_id=None, pad_token_id=0)
    return logits.tolist(), followed[0, inputs["input_ids"].shape[1]:].tolist()


def make(name, spec, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer = tokenizer_of(spec["names"], spec["extra"])
    kind = getattr(transformers, spec["model"]) if "model" in spec else transformers.AutoModelForImageTextToText
    (kind.from_config if kind is transformers.AutoModelForImageTextToText else kind)(spec["config"](tokenizer)).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    rules = rewrite(folder / "model.safetensors", seed=1)
    processor = processor_of(spec, tokenizer, "pil")
    processor.save_pretrained(folder)
    other = processor_of(spec, tokenizer, "torchvision")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    prompts = []
    for numbers in PROMPTS:
        inputs, replaced = inputs_of(processor, numbers, spec)
        assert inputs["input_ids"].tolist() == inputs_of(other, numbers, spec)[0]["input_ids"].tolist(), (name, numbers)
        logits, followed = answer_of(model, inputs)
        prompts.append(dict(images=numbers, texts=replaced, tokens=inputs["input_ids"][0].tolist(),
                            logits=[float(f"{number:.7g}") for number in logits], followed=followed))
    kept = ["config.json", "processor_config.json", "preprocessor_config.json"]
    files = {file: json.loads((folder / file).read_text()) for file in kept if (folder / file).exists()}
    for fields in files.values():
        fields.pop("video_processor", None)
    fields = dict(case=name, transformers=transformers.__version__, files=files, weights=rules, images=IMAGES, prompts=prompts)
    places = [len(prompt["tokens"]) for prompt in prompts]
    cases.write(OUT, name, fields, f", tokens {places}")


if __name__ == "__main__":
    cases.run(CASES, lambda name, folder, _: make(name, CASES[name], folder))
