"""Makes the golden cases of images: small files with the pixels that Pillow and `transformers` read from them, resized images, and the numbers that
the image processors of `transformers` make of them.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install -r scripts/reference/requirements.txt torchvision pillow
    VENV/bin/python scripts/reference/images.py

It writes worker/images/tests/images.json with these fields:

    transformers, torchvision, pillow
    files    name, file, width, height, pixels, apart: a file, upright and as RGB in front of white, and how far a pixel may be from it
    resizes  file, width, height, number, pixels: a file of the list above resized by Pillow with the filter of this number
    plans    kind, fields, file, shape, numbers: the numbers of a processor with these fields, and their shape

Files and pixels are in base64. Numbers have four digits behind the point.
"""

import base64
import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL
import torchvision
import transformers
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb
from transformers.models.clip.image_processing_clip import CLIPImageProcessor
from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor

OUT = Path(__file__).resolve().parents[2] / "worker" / "images" / "tests" / "images.json"
ORIENTATION = 0x0112


def picture(width, height, colours=3, seed=0):
    """A slope with some noise, so that neighbours differ a little and corners differ much."""
    noise = np.random.default_rng(seed).integers(0, 40, (height, width, colours))
    y, x, colour = np.meshgrid(np.arange(height), np.arange(width), np.arange(colours), indexing="ij")
    slope = (x * (170 - 60 * colour) // max(width - 1, 1) + y * (40 + 60 * colour) // max(height - 1, 1)) % 216
    return (slope + noise).astype(np.uint8)


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png(array, bits, colour):
    """A PNG of a kind that Pillow does not write. Numbers of 16 bits."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    height, width = array.shape[:2]
    rows = b"".join(b"\0" + array[y].astype(">u2").tobytes() for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def turned(orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def files():
    colour = Image.fromarray(picture(13, 9))
    alpha = Image.fromarray(picture(7, 5, 4))
    grey = Image.fromarray(picture(6, 5, 1)[..., 0])
    deep = np.random.default_rng(5).integers(0, 65536, (3, 4, 4))
    deep[0] //= 300
    palette = colour.quantize(16)
    clear = palette.copy()
    clear.info["transparency"] = 3
    large = Image.fromarray(picture(41, 31, seed=3))
    photo = Image.fromarray(np.asarray(Image.fromarray(picture(8, 6, seed=4)).resize((32, 24), Image.BICUBIC)))
    yield "colour.png", saved(colour, "png"), 0
    yield "alpha.png", saved(alpha, "png"), 0
    yield "grey.png", saved(grey, "png"), 0
    yield "grey-alpha.png", saved(Image.merge("LA", (grey, grey.rotate(180))), "png"), 0
    yield "bits.png", saved(grey.convert("1"), "png"), 0
    yield "palette.png", saved(palette, "png", bits=4), 0
    yield "palette-clear.png", saved(clear, "png"), 0
    yield "deep-grey.png", png(deep[..., :1], 16, 0), 0
    yield "deep-grey-alpha.png", png(deep[..., :2], 16, 4), 0
    yield "deep.png", png(deep[..., :3], 16, 2), 0
    yield "deep-alpha.png", png(deep, 16, 6), 0
    yield "turned.png", saved(colour, "png", exif=turned(6)), 0
    yield "colour.bmp", saved(colour, "bmp"), 0
    yield "palette.gif", saved(palette, "gif"), 0
    yield "pictures.gif", saved(palette, "gif", save_all=True, append_images=[colour.rotate(180).quantize(8)]), 0
    yield "lossless.webp", saved(colour, "webp", lossless=True), 0
    yield "alpha.webp", saved(alpha, "webp", lossless=True, exact=True), 0
    yield "pictures.webp", saved(colour, "webp", lossless=True, save_all=True, append_images=[colour.rotate(180)]), 0
    yield "photo.webp", saved(photo, "webp", quality=90), 3
    yield "large.png", saved(large, "png"), 0
    yield "photo.jpg", saved(photo, "jpeg", quality=92), 4
    yield "photo-whole.jpg", saved(photo, "jpeg", quality=92, subsampling=0), 2
    yield "progressive.jpg", saved(photo, "jpeg", quality=80, progressive=True), 3
    yield "grey.jpg", saved(photo.convert("L"), "jpeg", quality=90), 2
    yield "print.jpg", saved(photo.convert("CMYK"), "jpeg", quality=92), 3
    for orientation in range(2, 9):
        yield f"turned-{orientation}.jpg", saved(photo.crop((0, 0, 16, 8)), "jpeg", quality=95, subsampling=0, exif=turned(orientation)), 2


RESIZES = [(7, 5), (13, 33), (30, 9), (40, 1), (52, 37), (21, 30)]
PLANS = [
    ("clip", "large.png", dict(size=12, crop_size=12)),
    ("clip", "photo.jpg", dict(size={"shortest_edge": 16}, crop_size={"height": 14, "width": 20})),
    ("clip", "large.png", dict(size={"shortest_edge": 10}, do_center_crop=False, do_normalize=False, resample=2)),
    ("clip", "colour.png", dict(do_resize=False, crop_size={"height": 12, "width": 10}, do_rescale=False, do_normalize=False)),
    ("clip", "large.png", dict(size={"height": 9, "width": 8}, do_center_crop=False, resample=1)),
    ("clip", "large.png", dict(size={"shortest_edge": 12, "longest_edge": 14}, do_center_crop=False, resample=0)),
    ("siglip", "large.png", dict(size={"height": 14, "width": 14})),
    ("siglip", "turned-6.jpg", dict(size={"height": 10, "width": 6}, resample=2)),
    ("siglip", "large.png", dict(size=[8, 12], image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.25, 0.125], rescale_factor=0.01)),
    ("siglip", "large.png", dict(size={"height": 6, "width": 6}, resample=1)),
]
PROCESSORS = dict(clip=CLIPImageProcessor, siglip=SiglipImageProcessor)


def resized(image, width, height, number):
    """Rows first, then columns, as torchvision does it. Pillow takes whichever order it finds cheaper."""
    return image.resize((width, image.height), number).resize((width, height), number)


def main():
    text = lambda data: base64.b64encode(data).decode()
    upright = lambda data: Image.fromarray(convert_to_rgb(ImageOps.exif_transpose(Image.open(io.BytesIO(data))), return_numpy=True))
    all_files = list(files())
    images = {name: upright(data) for name, data, _ in all_files}
    rows = [dict(name=name, file=text(data), width=images[name].width, height=images[name].height, pixels=text(images[name].tobytes()), apart=apart)
            for name, data, apart in all_files]
    resizes = [dict(file="large.png", width=width, height=height, number=number, pixels=text(resized(images["large.png"], width, height, number).tobytes()))
               for number in range(6) for width, height in RESIZES[number % 2 :: 2]]
    plans = []
    for kind, file, fields in PLANS:
        numbers = PROCESSORS[kind](**fields)(images[file], return_tensors="pt")["pixel_values"][0]
        rounded = [round(number, 4) for number in numbers.double().flatten().tolist()]
        plans.append(dict(kind=kind, file=file, fields=fields, shape=list(numbers.shape), numbers=rounded))
    versions = dict(transformers=transformers.__version__, torchvision=torchvision.__version__.split("+")[0], pillow=PIL.__version__)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(dict(**versions, files=rows, resizes=resizes, plans=plans), separators=(",", ":")).replace("},{", "},\n{") + "\n")
    print(OUT, OUT.stat().st_size)


if __name__ == "__main__":
    main()
