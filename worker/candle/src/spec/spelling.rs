//! The names of a decoder's tensors in files. Layers ask for parts by one set of names, those of Llama in safetensors;
//! each family and format spells them in its own way, and some store several parts in one tensor.

use std::ops::Range;

use crate::spec::part_names::{
    EMBEDDING, FINAL_NORM, HEAD, HEAD_BIAS, MIXER_NORM, MIXER_POST_NORM, MLP_NORM, MLP_POST_NORM, Needed,
};

/// How files spell the names of tensors.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TensorSpelling {
    /// The text before the name of a layer's part, up to its number.
    pub(crate) layers: &'static str,
    /// The text that names outside of layers begin with, in place of `model.`.
    pub(crate) outside: String,
    /// The parts of layers that have other names, or share a tensor.
    pub(crate) parts: Vec<PartSpelling>,
    /// NeededTensors outside of layers that have other names: ours, and theirs.
    pub(crate) ends: Vec<(&'static str, &'static str)>,
    /// Names that some files have in place of others.
    pub(crate) or_else: Vec<PartSpelling>,
}

/// The name of a layer's part in files. A star stands for an expert's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartSpelling {
    /// Our name, without the layer.
    pub(crate) part: &'static str,
    /// Their name, without the layer.
    pub(crate) stored: &'static str,
    pub(crate) share: TensorShare,
}

/// The share of a stored tensor that a part has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TensorShare {
    /// All of it.
    Whole,
    /// Some rows, behind those of these parts.
    Rows {
        /// All parts of the tensor, in order.
        of: &'static [&'static str],
    },
    /// The rows of one expert, in a stack of all.
    Stack {
        /// All parts of an expert's rows, in order; just one where a tensor has one part.
        of: &'static [&'static str],
        /// Whether rows of the parts take turns, in place of lying one behind the other.
        in_turns: bool,
        form: StackForm,
    },
    /// Rows of each head, of which keys come before values, turned over.
    HeadKeys {
        /// Rows of a head's keys.
        keys: usize,
        /// Rows of a head's values.
        values: usize,
    },
    /// Rows of each head, of which keys come before values.
    HeadValues {
        /// Rows of a head's keys.
        keys: usize,
        /// Rows of a head's values.
        values: usize,
    },
    /// One head's rows in a stack of all.
    Head,
}

/// The form of a stack of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackForm {
    /// `[experts, out, in]`.
    Rows,
    /// `[experts, in, out]`.
    Turned,
    /// Blocks of MXFP4 apart from their scales: `[experts, out, in / 32, 16]` and `[experts, out, in / 32]`.
    Mxfp4,
    /// Biases, `[experts, out]`.
    Biases,
}

/// The place of a part in the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartLocation {
    /// The name of the stored tensor.
    pub(crate) stored: String,
    /// Its rows, where the part is not all of it. Rows are counted over all dimensions but the last.
    pub(crate) rows: Option<Range<usize>>,
    pub(crate) form: PlaceForm,
    /// Of the rows of the form, where only some are meant: the first, and the distance to the next.
    pub(crate) every: Option<(usize, usize)>,
}

/// The work that the bytes of a place need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceForm {
    /// No work.
    AsStored,
    /// Rows and columns change places.
    Turned,
    /// Blocks and scales of MXFP4 come together.
    Mxfp4,
}

impl PartLocation {
    /// All of a stored tensor.
    pub(crate) fn whole(stored: String) -> Self {
        Self { stored, rows: None, form: PlaceForm::AsStored, every: None }
    }

    /// Whether the part's bytes lie in the file one behind the other.
    pub(crate) fn is_stored(&self) -> bool {
        self.form == PlaceForm::AsStored && self.every.is_none()
    }
}

impl TensorSpelling {
    /// The names of safetensors of the Llama family.
    pub(crate) fn llama() -> Self {
        Self { layers: "layers.", outside: "model.".to_owned(), ..Self::default() }
    }

    /// The names of GGUF that most architectures share.
    pub(crate) fn gguf() -> Self {
        Self { layers: "blk.", ..Self::default() }
            .ending(&[
                (EMBEDDING, "token_embd.weight"),
                (FINAL_NORM, "output_norm.weight"),
                ("model.norm.bias", "output_norm.bias"),
                (HEAD, "output.weight"),
                (HEAD_BIAS, "output.bias"),
            ])
            .renaming(&[
                (MIXER_NORM, "attn_norm"),
                (MLP_NORM, "ffn_norm"),
                ("self_attn.q_proj", "attn_q"),
                ("self_attn.k_proj", "attn_k"),
                ("self_attn.v_proj", "attn_v"),
                ("self_attn.o_proj", "attn_output"),
                ("self_attn.q_norm", "attn_q_norm"),
                ("self_attn.k_norm", "attn_k_norm"),
                (MIXER_POST_NORM, "post_attention_norm"),
                (MLP_POST_NORM, "post_ffw_norm"),
                ("mlp.gate_proj", "ffn_gate"),
                ("mlp.up_proj", "ffn_up"),
                ("mlp.down_proj", "ffn_down"),
            ])
    }

    /// The name of any tensor that is not one of several in another.
    pub(crate) fn name(&self, needed: &Needed) -> String {
        let layer = needed.name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        match layer.and_then(|(layer, _)| layer.parse().ok()) {
            Some(layer) => self.place(layer, needed.part(), &[]).stored,
            None => self.end(&needed.name),
        }
    }

    /// Adds parts with other names, before those that it has.
    pub(crate) fn renaming(mut self, names: &[(&'static str, &'static str)]) -> Self {
        let whole =
            |&(part, stored): &(&'static str, &'static str)| PartSpelling { part, stored, share: TensorShare::Whole };
        self.parts.splice(0..0, names.iter().map(whole));
        self
    }

    /// Adds tensors outside of layers with other names.
    pub(crate) fn ending(mut self, names: &[(&'static str, &'static str)]) -> Self {
        self.ends.splice(0..0, names.iter().copied());
        self
    }

    /// Adds parts of one tensor, which has them one behind the other.
    pub(crate) fn fused(mut self, stored: &'static str, of: &'static [&'static str]) -> Self {
        self.parts.splice(0..0, of.iter().map(|part| PartSpelling { part, stored, share: TensorShare::Rows { of } }));
        self
    }

    /// Adds parts of experts that are stacked in one tensor.
    pub(crate) fn stacked(mut self, stored: &'static str, of: &'static [&'static str], form: StackForm) -> Self {
        let share = TensorShare::Stack { of, in_turns: false, form };
        self.parts.splice(0..0, of.iter().map(|part| PartSpelling { part, stored, share: share.clone() }));
        self
    }

    /// The same with rows that take turns.
    pub(crate) fn stacked_in_turns(
        mut self,
        stored: &'static str,
        of: &'static [&'static str],
        form: StackForm,
    ) -> Self {
        let share = TensorShare::Stack { of, in_turns: true, form };
        self.parts.splice(0..0, of.iter().map(|part| PartSpelling { part, stored, share: share.clone() }));
        self
    }

    /// Adds one part with a share of its own.
    pub(crate) fn with(mut self, part: &'static str, stored: &'static str, share: TensorShare) -> Self {
        self.parts.insert(0, PartSpelling { part, stored, share });
        self
    }

    /// Adds parts that have other names in some files.
    pub(crate) fn or_else(mut self, parts: Vec<PartSpelling>) -> Self {
        self.or_else = parts;
        self
    }

    /// Decides for the names that files have: the others, if they have a tensor of one of them in any layer.
    pub(crate) fn decide(&mut self, layers: usize, has: impl Fn(&str) -> bool) {
        let others = std::mem::take(&mut self.or_else);
        let there = |layer: usize| {
            let stored = |name: &PartSpelling| format!("{}{}{layer}.{}", self.outside, self.layers, name.stored);
            others.iter().any(|name| has(&stored(name)))
        };
        if (0..layers).any(there) {
            self.parts.splice(0..0, others);
        }
    }

    /// The name of a tensor outside of layers.
    pub(crate) fn end(&self, name: &str) -> String {
        if let Some((_, stored)) = self.ends.iter().find(|(ours, _)| *ours == name) {
            return (*stored).to_owned();
        }
        match name.strip_prefix("model.") {
            Some(rest) => format!("{}{rest}", self.outside),
            None => name.to_owned(),
        }
    }

    /// The place of a tensor outside of layers. A name with a star stands for parts of a stack.
    pub(crate) fn end_place(&self, needed: &Needed) -> PartLocation {
        let stack = self.ends.iter().find_map(|(ours, stored)| {
            let number = number_in(ours, &needed.name)??;
            Some((*stored, number))
        });
        let Some((stored, number)) = stack else { return PartLocation::whole(self.end(&needed.name)) };
        let rows = needed.shape.first().copied().unwrap_or(0);
        PartLocation { rows: Some(number * rows..(number + 1) * rows), ..PartLocation::whole(stored.to_owned()) }
    }

    /// The place of one of a layer's tensors; `all` are the tensors that the layer needs.
    pub(crate) fn place(&self, layer: usize, part: &str, all: &[Needed]) -> PartLocation {
        let full = |stored: &str| format!("{}{}{layer}.{stored}", self.outside, self.layers);
        let (path, kind) = part.rsplit_once('.').unwrap_or((part, ""));
        // A name for a whole part goes before one for its path, to which `.weight` or `.bias` is added.
        let whole = self.parts.iter().find_map(|name| Some((name, number_in(name.part, part)?, "")));
        let of_path = || self.parts.iter().find_map(|name| Some((name, number_in(name.part, path)?, kind)));
        let Some((name, number, kind)) = whole.or_else(of_path) else { return PartLocation::whole(full(part)) };
        let dot = if kind.is_empty() { "" } else { "." };
        let digits = number.map(|number| number.to_string()).unwrap_or_default();
        let stored = full(&format!("{}{dot}{kind}", name.stored.replace('*', &digits)));
        let place = |rows, form, every| PartLocation { stored: stored.clone(), rows: Some(rows), form, every };
        let number = number.unwrap_or(0);
        // The first expert's shapes are those of all.
        let shape_of = |part: &str, dimension: usize| {
            let part = format!("{}{dot}{kind}", part.replace('*', "0"));
            let found = all.iter().find(|needed| needed.part() == part);
            found.and_then(|needed| needed.shape.get(dimension).copied()).unwrap_or(0)
        };
        let own = shape_of(name.part, 0);
        let each = |of: &[&str]| -> usize { of.iter().map(|part| shape_of(part, 0)).sum() };
        let before = |of: &[&str]| -> usize {
            of.iter().take_while(|other| **other != name.part).map(|other| shape_of(other, 0)).sum()
        };
        match &name.share {
            TensorShare::Whole => PartLocation::whole(stored),
            TensorShare::Rows { of } => place(before(of)..before(of) + own, PlaceForm::AsStored, None),
            TensorShare::Stack { of, in_turns, form } => {
                let turn = of.iter().position(|other| *other == name.part).unwrap_or(0);
                let some = (*in_turns || *form == StackForm::Turned && of.len() > 1).then_some(());
                let every = some.map(|()| if *in_turns { (turn, of.len()) } else { (before(of), 1) });
                let (first, rows) = match (form, in_turns) {
                    // Rows of the stored tensor are columns of the part.
                    (StackForm::Turned, _) => {
                        let columns = shape_of(name.part, 1);
                        return place(number * columns..(number + 1) * columns, PlaceForm::Turned, every);
                    }
                    (StackForm::Biases, _) => return place(number..number + 1, PlaceForm::AsStored, every),
                    (_, true) => (number * each(of), each(of)),
                    (_, false) => (number * each(of) + before(of), own),
                };
                let form = if *form == StackForm::Mxfp4 { PlaceForm::Mxfp4 } else { PlaceForm::AsStored };
                place(first..first + rows, form, every)
            }
            TensorShare::HeadKeys { keys, values } => {
                let first = number * (keys + values);
                place(first..first + keys, PlaceForm::Turned, None)
            }
            TensorShare::HeadValues { keys, values } => {
                let first = number * (keys + values) + keys;
                place(first..first + values, PlaceForm::AsStored, None)
            }
            TensorShare::Head => place(number * own..(number + 1) * own, PlaceForm::AsStored, None),
        }
    }
}

/// The number in a path, of an expert or a head, if the pattern fits: of a pattern without a star there is none.
fn number_in(pattern: &str, path: &str) -> Option<Option<usize>> {
    let Some((before, behind)) = pattern.split_once('*') else { return (pattern == path).then_some(None) };
    let number = path.strip_prefix(before)?.strip_suffix(behind)?;
    number.parse().ok().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed(part: &str, shape: &[usize]) -> Needed {
        Needed { name: format!("model.layers.3.{part}"), shape: shape.to_vec() }
    }

    #[test]
    fn gguf_has_other_names() {
        let spelling = TensorSpelling::gguf();
        for (name, renamed) in [
            (EMBEDDING, "token_embd.weight"),
            ("model.layers.17.self_attn.k_norm.weight", "blk.17.attn_k_norm.weight"),
            ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
            ("model.layers.3.self_attn.q_proj.bias", "blk.3.attn_q.bias"),
        ] {
            assert_eq!(spelling.name(&Needed { name: name.to_owned(), shape: Vec::new() }), renamed);
        }
    }

    #[test]
    fn parts_of_one_tensor_have_rows_one_behind_the_other() {
        const PARTS: &[&str] = &["self_attn.q_proj", "self_attn.k_proj"];
        let all = [needed("self_attn.q_proj.weight", &[8, 4]), needed("self_attn.k_proj.weight", &[2, 4])];
        let spelling = TensorSpelling::llama().fused("self_attn.qk_proj", PARTS);
        let key = spelling.place(3, "self_attn.k_proj.weight", &all);
        assert_eq!((key.stored.as_str(), key.rows), ("model.layers.3.self_attn.qk_proj.weight", Some(8..10)));
        let other = spelling.place(3, "mlp.up_proj.weight", &all);
        assert_eq!((other.stored.as_str(), other.rows), ("model.layers.3.mlp.up_proj.weight", None));
    }

    #[test]
    fn experts_have_their_rows_of_a_stack() {
        const PARTS: &[&str] = &["mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"];
        let all = [needed("mlp.experts.0.gate_proj.weight", &[6, 4]), needed("mlp.experts.0.up_proj.weight", &[6, 4])];
        let stacked = |form| TensorSpelling::llama().stacked("moe.inputs", PARTS, form);
        let up = stacked(StackForm::Rows).place(3, "mlp.experts.2.up_proj.weight", &all);
        assert_eq!((up.stored.as_str(), up.rows), ("model.layers.3.moe.inputs.weight", Some(30..36)));
        let turned = stacked(StackForm::Turned).place(3, "mlp.experts.2.up_proj.weight", &all);
        assert_eq!((turned.rows, turned.form, turned.every), (Some(8..12), PlaceForm::Turned, Some((6, 1))));
        let in_turns = TensorSpelling::llama().stacked_in_turns("moe.inputs", PARTS, StackForm::Rows);
        let up = in_turns.place(3, "mlp.experts.2.up_proj.weight", &all);
        assert_eq!((up.rows, up.every), (Some(24..36), Some((1, 2))));
        let apart = TensorSpelling::llama().renaming(&[("mlp.experts.*.up_proj", "moe.experts.*.w3")]);
        assert_eq!(
            apart.place(3, "mlp.experts.2.up_proj.weight", &all).stored,
            "model.layers.3.moe.experts.2.w3.weight"
        );
    }
}
