"""Makes the golden cases of models with a tower for texts and one for images: tiny random CLIP, SigLIP and SigLIP 2 with the vectors
and comparisons of `transformers`.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install -r scripts/reference/requirements.txt torchvision pillow
    VENV/bin/python scripts/reference/towers.py [CASE ...] [--models DIR]

Each case becomes worker/candle/tests/towers/CASE.json with these fields:

    case, transformers
    files      the texts of the folder's files beside the weights, by their paths
    weights    the weight files by their paths: a seed and [name, shape, mean, scale] of every tensor, by families.py's rule
    texts      lists of token ids, without the tokens that fill them up
    images     files of images, in base64
    pixels     the shape of the first image's numbers, and the numbers
    of_pixels  the vector of the first image by exactly these numbers
    rows       of towers that other models use: the rows of the first image in front of the last layer
    vectors    the vectors of the texts, and of the images, all of length 1
    logits     for each image the comparison with each text

--models also writes DIR/CASE, a folder that the package loads.
"""

import base64
import io
import json
import shutil
from pathlib import Path

import cases
import torch
import transformers
from encoders import put
from families import entry_of, tensor_of
from images import picture, saved
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parents[2] / "worker" / "candle" / "tests" / "towers"
NUMBER = lambda mean, scale: (None, dict(mean=mean, scale=scale))
SPEC = dict(zero_centred=None, rules={"logit_scale": NUMBER(1.5, 0.5), "logit_bias": NUMBER(-1, 0.5), "class_embedding|probe|position_emb": NUMBER(0, 0.7)})
VOCABULARY, END, PAD = 90, 88, 1
TEXT = dict(hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=40, vocab_size=VOCABULARY, max_position_embeddings=12)
VISION = dict(hidden_size=24, num_attention_heads=3, num_hidden_layers=3, intermediate_size=36, image_size=16, patch_size=4)
SHORT = dict(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}, image_processor_type="CLIPImageProcessor")
PATCHES = dict(hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=36, patch_size=4, num_patches=16)


def case(model_type, text, vision, processor, tokenizer=None, older=False, **fields):
    """`older`: the parts of config.json have the names of CLIP's first files."""
    return dict(model_type=model_type, text=text, vision=vision, processor=processor, tokenizer=tokenizer or {}, older=older, fields=fields)


def siglip(tokenizer, text={}, vision={}, processor={}):
    processor = dict(size={"height": 18, "width": 18}, image_processor_type="SiglipImageProcessor") | processor
    return case("siglip", TEXT | dict(projection_size=24) | text, VISION | dict(image_size=18, patch_size=6) | vision, processor, tokenizer)


CASES = {
    "clip-first-files": case("clip", TEXT | dict(eos_token_id=2), VISION, dict(size=16, crop_size=16, feature_extractor_type="CLIPFeatureExtractor", resample=3), older=True, projection_dim=10),
    "clip-gelu": case("clip", TEXT | dict(eos_token_id=END, hidden_act="gelu", hidden_size=32, num_attention_heads=2, layer_norm_eps=1e-3),
                      VISION | dict(image_size=20, patch_size=6, hidden_act="gelu"),
                      SHORT | dict(size={"shortest_edge": 22}, crop_size={"height": 20, "width": 20}, resample=2, image_mean=[0.4, 0.5, 0.6]), projection_dim=16),
    "siglip": siglip(dict(model_input_names=["input_ids"], model_max_length=12, pad_token="<pad>", tokenizer_class="PreTrainedTokenizerFast")),
    "siglip-fill-unseen": siglip(dict(model_max_length=10, padding_side="left", pad_token={"content": "<pad>"}), dict(hidden_act="relu"), dict(num_hidden_layers=1)),
    "siglip2": case("siglip2", TEXT | dict(projection_size=24), PATCHES, dict(patch_size=4, max_num_patches=20, image_processor_type="Siglip2ImageProcessor"),
                    dict(model_input_names=["input_ids"], padding_side="right", pad_token="<pad>")),
}
LENGTHS = (2, 5, 9)


def images():
    """Files of some proportions."""
    smooth = lambda width, height, seed: Image.fromarray(picture(8, 6, seed=seed)).resize((width, height), Image.BICUBIC)
    return [saved(Image.fromarray(picture(30, 22, seed=7)), "png"), saved(smooth(40, 24, 8), "jpeg", quality=97, subsampling=0), saved(smooth(15, 38, 9), "png")]


def write_folder(folder, spec):
    config = transformers.AutoConfig.for_model(spec["model_type"], text_config=spec["text"], vision_config=spec["vision"], **spec["fields"])
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    entries = [entry_of(name, shape, SPEC) for name, shape in sorted(shapes.items())]
    save_file({entry[0]: tensor_of(entry, 1) for entry in entries}, path, metadata={"format": "pt"})
    (folder / "generation_config.json").unlink(missing_ok=True)
    if spec["older"]:
        path = folder / "config.json"
        written = json.loads(path.read_text())
        parts = {part: written[part] for part in ("text_config", "vision_config")}
        put(path, written | {f"{part}_dict": fields for part, fields in parts.items()} | {part: dict(hidden_size=8) for part in parts})
    put(folder / "preprocessor_config.json", spec["processor"])
    put(folder / "tokenizer_config.json", spec["tokenizer"])
    token = dict(id=PAD, content="<pad>", special=True, single_word=False, lstrip=False, rstrip=False, normalized=False)
    put(folder / "tokenizer.json", dict(version="1.0", added_tokens=[token], model=dict(type="WordLevel", vocab={}, unk_token="<pad>")))
    texts = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return texts, {"model.safetensors": dict(seed=1, tensors=entries)}


def filled(spec, ids):
    """A text as the model reads it, and which of its tokens are its own."""
    if spec["model_type"] == "clip":
        return ids, [1] * len(ids)
    length = min(spec["tokenizer"].get("model_max_length", 64), spec["text"]["max_position_embeddings"])
    fill = length - len(ids)
    left = spec["tokenizer"].get("padding_side") == "left"
    return ([PAD] * fill + ids, [0] * fill + [1] * len(ids)) if left else (ids + [PAD] * fill, [1] * len(ids) + [0] * fill)


def answers(folder, spec, texts, files):
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    unseen = "attention_mask" in spec["tokenizer"].get("model_input_names", ["attention_mask"])
    one = lambda vectors: torch.nn.functional.normalize(vectors[0], dim=0)
    of_texts, of_images, more = [], [], {}
    for ids in texts:
        ids, own = filled(spec, ids)
        mask = dict(attention_mask=torch.tensor([own])) if unseen else {}
        of_texts.append(one(model.get_text_features(input_ids=torch.tensor([ids]), **mask).pooler_output))
    for at, file in enumerate(files):
        image = Image.open(io.BytesIO(file)).convert("RGB")
        inputs = dict(processor(images=[image], return_tensors="pt"))
        of_images.append(one(model.get_image_features(**inputs).pooler_output))
        if at == 0:
            pixels = inputs["pixel_values"][0]
            if spec["model_type"] == "siglip2":
                rows, columns = inputs["spatial_shapes"][0].tolist()
                side = spec["vision"]["patch_size"]
                pixels = pixels[: rows * columns].reshape(rows, columns, side, side, 3).permute(4, 0, 2, 1, 3).reshape(3, rows * side, columns * side)
            exact = [float(f"{number:.7g}") for number in pixels.flatten().tolist()]
            more["pixels"] = [list(pixels.shape), exact]
            more["of_pixels"] = of_images[0]
            hidden = model.vision_model(**inputs, output_hidden_states=True).hidden_states[-2][0]
            more["rows"] = hidden if spec["model_type"] != "siglip2" else hidden[: rows * columns]
    of_texts, of_images = torch.stack(of_texts), torch.stack(of_images)
    logits = of_images @ of_texts.t() * model.logit_scale.exp() + (model.logit_bias if spec["model_type"] != "clip" else 0)
    return more, [of_texts, of_images], logits


def short(value):
    if isinstance(value, torch.Tensor):
        return short(value.tolist())
    return [short(each) for each in value] if isinstance(value, list) else float(f"{value:.6g}")


def make(name, spec, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files, weights = write_folder(folder, spec)
    generator = torch.Generator().manual_seed(len(name))
    texts = [torch.randint(3, END, (length,), generator=generator).tolist() for length in LENGTHS]
    if spec["model_type"] == "clip":
        texts = [ids + [END] * (1 + at % 2) for at, ids in enumerate(texts)]
    with torch.no_grad():
        more, vectors, logits = answers(folder, spec, texts, images())
    more = {key: short(value) if key != "pixels" else value for key, value in more.items()}
    fields = dict(case=name, transformers=transformers.__version__, files=files, weights=weights, texts=texts,
                  images=[base64.b64encode(file).decode() for file in images()], **more, vectors=[short(part) for part in vectors], logits=short(logits))
    cases.write(OUT, name, fields)


if __name__ == "__main__":
    cases.run(CASES, lambda name, folder, _: make(name, CASES[name], folder))
