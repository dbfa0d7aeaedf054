//! The names of a Whisper model's tensors in files: those of `transformers`, with or without `model.` in front, and
//! those of OpenAI's program, which GGUF files have too.

use std::borrow::Cow;

use crate::files::ModelFiles;

/// Parts of names in `transformers` and in OpenAI's files. The longer ones come first.
const OF_OPENAI: [(&str, &str); 16] = [
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("self_attn_layer_norm", "attn_ln"),
    ("final_layer_norm", "mlp_ln"),
    ("encoder_attn.", "cross_attn."),
    ("self_attn.", "attn."),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
    ("layers.", "blocks."),
    ("embed_tokens", "token_embedding"),
    ("embed_positions.weight", "positional_embedding"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
];

/// The spelling of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhisperNames {
    /// Those of `transformers` behind this.
    Transformers(&'static str),
    /// Those of OpenAI's program behind this.
    OpenAi(&'static str),
}

impl WhisperNames {
    /// The spelling of these files; that of `transformers` if none fits.
    pub(super) fn of(files: &ModelFiles) -> Self {
        let all = [Self::Transformers("model."), Self::Transformers(""), Self::OpenAi(""), Self::OpenAi("model.")];
        let fits = |names: &Self| files.has(&names.stored("encoder.layers.0.fc1.weight"));
        all.into_iter().find(fits).unwrap_or(Self::Transformers("model."))
    }

    /// The stored name of a part.
    pub(super) fn stored(self, part: &str) -> String {
        let outside = part.starts_with("proj_out");
        match self {
            Self::Transformers(_) if outside => part.to_owned(),
            Self::Transformers(before) => format!("{before}{part}"),
            Self::OpenAi(before) => {
                let mut name = Cow::Borrowed(part);
                for (ours, theirs) in OF_OPENAI {
                    if name.contains(ours) {
                        name = Cow::Owned(name.replacen(ours, theirs, 1));
                    }
                }
                format!("{before}{name}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_28_parts_have_the_names_of_each_program() {
        let openai = |part: &str| WhisperNames::OpenAi("").stored(part);
        assert_eq!(openai("encoder.layers.3.self_attn.k_proj.weight"), "encoder.blocks.3.attn.key.weight");
        assert_eq!(openai("decoder.layers.0.encoder_attn.out_proj.bias"), "decoder.blocks.0.cross_attn.out.bias");
        assert_eq!(openai("decoder.layers.0.encoder_attn_layer_norm.bias"), "decoder.blocks.0.cross_attn_ln.bias");
        assert_eq!(openai("decoder.layers.1.final_layer_norm.weight"), "decoder.blocks.1.mlp_ln.weight");
        assert_eq!(openai("decoder.layers.1.fc2.weight"), "decoder.blocks.1.mlp.2.weight");
        assert_eq!(openai("encoder.embed_positions.weight"), "encoder.positional_embedding");
        assert_eq!(openai("decoder.embed_tokens.weight"), "decoder.token_embedding.weight");
        assert_eq!(openai("encoder.layer_norm.weight"), "encoder.ln_post.weight");
        assert_eq!(openai("decoder.layer_norm.weight"), "decoder.ln.weight");
        let transformers = WhisperNames::Transformers("model.");
        assert_eq!(transformers.stored("decoder.layer_norm.weight"), "model.decoder.layer_norm.weight");
        assert_eq!(transformers.stored("proj_out.weight"), "proj_out.weight");
    }
}
