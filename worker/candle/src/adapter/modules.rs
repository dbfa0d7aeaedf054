//! The modules of a model by the names that adapters call them: those of `transformers`, of the model's own files and
//! of GGUF. Each leads to the decoder's parts that it is made of. Families with fused projections have several.

use std::collections::HashMap;
use std::ops::Range;

use crate::spec::part_names::{EMBEDDING, HEAD, Needed, layer};
use crate::spec::spelling::{PartLocation, PlaceForm, TensorSpelling};
use crate::spec::{DecoderSpec, Mixer};

/// A part of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModulePart {
    /// The decoder's path of the matrix, without `.weight`.
    pub(crate) path: String,
    /// The shape of the decoder's matrix, `[out, in]`.
    pub(crate) shape: [usize; 2],
    /// The part's rows of the module's matrix.
    pub(crate) rows: Range<usize>,
    /// Whether these rows are the columns of the decoder's matrix.
    pub(crate) is_turned: bool,
    /// The heads whose rows GGUF files of some families have in another order.
    pub(crate) heads: Option<usize>,
}

/// All modules of a model.
pub(crate) struct ModuleTable {
    modules: HashMap<String, Vec<ModulePart>>,
    /// Modules that `transformers` has and never uses.
    unused: Vec<String>,
    pub(crate) layers: usize,
}

/// Parts that some families keep in one tensor, under the names that most of them have.
const FUSED: [(&str, &[&str]); 4] = [
    ("self_attn.qkv_proj", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    ("mlp.gate_up_proj", &["mlp.gate_proj", "mlp.up_proj"]),
    ("attn_qkv", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    ("self_attn.query_key_value", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
];

/// The beginnings of names for which a model of text is one of several parts.
const BEGINNINGS: [&str; 5] =
    ["model.language_model.", "language_model.model.", "model.text_model.", "language_model.", "model."];

/// A name without what wrappers of the model put in front of it.
pub(crate) fn inner(name: &str) -> &str {
    BEGINNINGS.iter().find_map(|beginning| name.strip_prefix(beginning)).unwrap_or(name)
}

fn path_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

impl ModuleTable {
    pub(crate) fn of(spec: &DecoderSpec) -> Self {
        let mut table = Self { modules: HashMap::new(), unused: Vec::new(), layers: spec.layers.len() };
        let ends = [EMBEDDING, HEAD].map(|name| Needed { name: name.to_owned(), shape: spec.embedding_shape() });
        let outside = spec.needed_before_layers().into_iter().chain(spec.needed_behind_layers());
        for needed in ends.into_iter().chain(outside).filter(Needed::is_matrix) {
            let whole = whole(&needed, None);
            for name in [spec.spelling.end(&needed.name), TensorSpelling::gguf().end(&needed.name)] {
                table.modules.insert(inner(path_of(&name)).to_owned(), vec![whole.clone()]);
            }
            table.modules.insert(inner(&whole.path).to_owned(), vec![whole]);
        }
        for index in 0..spec.layers.len() {
            table.add_layer(spec, index);
        }
        table
    }

    fn add_layer(&mut self, spec: &DecoderSpec, index: usize) {
        let all = spec.needed_by_layer(index);
        let attention = spec.layers.get(index).and_then(|layer| match &layer.mixer {
            Mixer::Attention(attention) | Mixer::Both(attention, _) => Some(attention),
            _ => None,
        });
        let heads = |part: &str| match (part, attention) {
            ("self_attn.q_proj.weight", Some(attention)) => Some(attention.heads),
            ("self_attn.k_proj.weight", Some(attention)) => Some(attention.kv_heads),
            _ => None,
        };
        let matrices: Vec<&Needed> = all.iter().filter(|needed| needed.is_matrix()).collect();
        for needed in &matrices {
            let PartLocation { stored, rows, form, every } = spec.spelling.place(index, needed.part(), &all);
            // Stacks of experts are no modules: each expert is one, under its own name.
            if needed.part().contains(".experts.") && rows.is_some() || every.is_some() {
                continue;
            }
            let mut part = whole(needed, heads(needed.part()));
            part.is_turned = form == PlaceForm::Turned;
            if let Some(rows) = rows {
                part.rows = rows;
            }
            self.modules.entry(inner(path_of(&stored)).to_owned()).or_default().push(part);
        }
        // The decoder's own names, and those of GGUF, for the parts that the files have under others.
        let gguf = TensorSpelling::gguf();
        for needed in &matrices {
            let part = whole(needed, heads(needed.part()));
            if needed.part().contains(".heads.") {
                continue;
            }
            let in_gguf = gguf.place(index, needed.part(), &all).stored;
            for name in [inner(&part.path), inner(path_of(&in_gguf))] {
                self.modules.entry(name.to_owned()).or_insert_with(|| vec![part.clone()]);
            }
        }
        for (fused, parts) in FUSED {
            let of = |part: &&str| {
                let needed = matrices.iter().find(|needed| path_of(needed.part()) == *part)?;
                Some(whole(needed, heads(needed.part())))
            };
            let Some(mut found) = parts.iter().map(of).collect::<Option<Vec<ModulePart>>>() else { continue };
            let mut end = 0;
            for part in &mut found {
                part.rows = end..end + part.shape[0];
                end = part.rows.end;
            }
            let name = if fused.contains('.') { layer(index, fused) } else { format!("blk.{index}.{fused}") };
            self.modules.entry(inner(&name).to_owned()).or_insert(found);
        }
        if attention.is_some_and(|attention| attention.keys_of.is_some()) {
            let unused = ["self_attn.k_proj", "self_attn.v_proj"].map(|part| inner(&layer(index, part)).to_owned());
            self.unused.extend(unused);
        }
    }

    /// The parts of a module; none of one that the model lacks.
    pub(crate) fn get(&self, module: &str) -> Option<&[ModulePart]> {
        self.modules.get(inner(module)).map(Vec::as_slice)
    }

    /// Whether a module is one that no row ever passes.
    pub(crate) fn is_unused(&self, module: &str) -> bool {
        self.unused.iter().any(|unused| unused == inner(module))
    }

    /// The names of the modules in all layers that correspond to one in a layer.
    pub(crate) fn in_all_layers(&self, module: &str) -> Vec<String> {
        let Some((before, rest)) = module.split_once("layers.") else { return Vec::new() };
        let Some((_, part)) = rest.split_once('.') else { return Vec::new() };
        let named = (0..self.layers).map(|layer| format!("{before}layers.{layer}.{part}"));
        named.filter(|name| self.get(name).is_some() && !self.is_unused(name)).collect()
    }
}

fn whole(needed: &Needed, heads: Option<usize>) -> ModulePart {
    let shape = <[usize; 2]>::try_from(needed.shape.as_slice()).unwrap_or_default();
    ModulePart { path: path_of(&needed.name).to_owned(), shape, rows: 0..shape[0], is_turned: false, heads }
}
