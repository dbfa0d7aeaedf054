"""Converts a case of families.py to GGUF with the converter of a llama.cpp checkout, without a tokenizer."""

import copy
import json
import sys
from pathlib import Path


def convert(checkout: Path, folder: Path, outtype: str, path: Path) -> str:
    """Writes `path` and says its size, or says why the converter refuses the model."""
    # The converter needs the gguf package of its own checkout.
    for part in (checkout, checkout / "gguf-py"):
        if str(part) not in sys.path:
            sys.path.insert(0, str(part))
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    kinds = dict(f32=gguf.LlamaFileType.ALL_F32, q8_0=gguf.LlamaFileType.MOSTLY_Q8_0)
    path.unlink(missing_ok=True)
    # One of the converters counts the entries of this file.
    config = json.loads((folder / "config.json").read_text())
    count = config.get("text_config", config)["vocab_size"]
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(json.dumps(dict(model=dict(vocab={str(place): place for place in range(count)}), added_tokens=[])))
    try:
        with torch.inference_mode():
            # As the configuration is stored: transformers adds defaults that make the converter see other families.
            ModelBase.load_hparams = staticmethod(lambda *_, **__: copy.deepcopy(config))
            architecture = get_model_architecture(config, ModelType.TEXT)
            converter = get_model_class(architecture)
            # The cases have no layers that predict several tokens, even where the family's default has one.
            converter.no_mtp = converter.supports_mtp_export
            converter.set_vocab = made_up_vocabulary
            converter(folder, kinds[outtype], path, model_name=folder.name).write()
    except (Exception, SystemExit) as error:
        path.unlink(missing_ok=True)
        return f"REFUSED: {type(error).__name__}: {str(error)[:300]}"
    finally:
        tokenizer.unlink()
    return f"{path.stat().st_size} bytes"


def made_up_vocabulary(self) -> None:
    """A byte-pair vocabulary of one character each, in place of the converter's step that reads the model's tokenizer."""
    import gguf

    count = self.hparams.get("vocab_size") or self.hparams["text_config"]["vocab_size"]
    self.gguf_writer.add_tokenizer_model("gpt2")
    self.gguf_writer.add_tokenizer_pre("gpt-2")
    self.gguf_writer.add_token_list([chr(33 + place) for place in range(count)])
    self.gguf_writer.add_token_types([gguf.TokenType.NORMAL] * count)
    self.gguf_writer.add_token_merges(["! !"])
    self.gguf_writer.add_eos_token_id(2)
