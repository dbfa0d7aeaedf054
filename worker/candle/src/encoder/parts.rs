//! The tensors of an encoder: the names that this program reads them by, and their places in files of several
//! spellings.

use std::ops::Range;

use crate::files::ModelFiles;
use crate::spec::spelling::{PartLocation, PlaceForm};
use crate::spec::{NormKind, part_names};

/// A tensor that an encoder needs: its name, its place, and its shape.
pub(super) type EncoderPart = (String, PartLocation, Vec<usize>);

/// The prefixes that all names of a file may have: those of classes with a head.
const PREFIXES: [&str; 9] = ["", "bert.", "roberta.", "distilbert.", "mpnet.", "nomic_bert.", "gte.", "new.", "model."];

/// Finds parts by the names that files have for them, each without `.weight`.
pub(super) struct PartFinder<'a> {
    files: &'a ModelFiles,
    prefix: &'static str,
    /// Tasks with adapters, and their rank.
    adapters: [usize; 2],
    pub(super) found: Vec<EncoderPart>,
}

impl<'a> PartFinder<'a> {
    /// A finder for files that have the vectors of words by one of these names.
    pub(super) fn new(files: &'a ModelFiles, words: &[&str]) -> Self {
        let with = |prefix| Self { files, prefix, adapters: [0, 0], found: Vec::new() };
        let all = PREFIXES.into_iter().map(with);
        all.into_iter().find(|finder| finder.known("", words).is_some()).unwrap_or(with(""))
    }

    /// Finds adapters of so many tasks and this rank beside matrices that have them.
    pub(super) fn with_adapters(self, tasks: usize, rank: usize) -> Self {
        Self { adapters: [tasks, rank], ..self }
    }

    /// The first of these names behind a path that the files have, else the first of all: a missing tensor is reported
    /// by it.
    pub(super) fn path(&self, before: &str, names: &[&str]) -> String {
        self.known(before, names).unwrap_or_else(|| format!("{}{before}{}", self.prefix, names[0]))
    }

    /// The first of these names behind a path that the files have.
    pub(super) fn known(&self, before: &str, names: &[&str]) -> Option<String> {
        let paths = names.iter().map(|name| format!("{}{before}{name}", self.prefix));
        paths.into_iter().find(|path| self.files.has(&self.stored(path, "weight")))
    }

    /// The rows and columns of a stored matrix.
    pub(super) fn shape(&self, path: &str) -> Option<[usize; 2]> {
        let stored = self.files.get(&self.stored(path, "weight")).ok()?;
        match stored.shape[..] {
            [rows, columns] => Some([rows, columns]),
            _ => None,
        }
    }

    /// Whether the files have the bias of a path.
    pub(super) fn has_bias(&self, path: &str) -> bool {
        self.files.has(&self.stored(path, "bias"))
    }

    /// A product: its matrix, and its bias.
    pub(super) fn linear(&mut self, name: &str, path: &str, shape: [usize; 2], bias: bool) {
        self.rows(name, path, None, shape, bias);
    }

    /// The same of some rows of a stored product.
    pub(super) fn rows(&mut self, name: &str, path: &str, rows: Option<Range<usize>>, shape: [usize; 2], bias: bool) {
        self.find_adapters(name, path, rows.clone(), shape);
        let place = |end: &str| PartLocation { rows: rows.clone(), ..PartLocation::whole(self.stored(path, end)) };
        let weight = (format!("{name}.weight"), place("weight"), shape.to_vec());
        let bias = bias.then(|| (format!("{name}.bias"), place("bias"), vec![shape[0]]));
        self.found.extend([Some(weight), bias].into_iter().flatten());
    }

    /// The two matrices of each task's adapter, `TASK.a` and `TASK.b`, where the files have them. Those of vectors lie
    /// turned over against those of products: their rows are chosen, in place of multiplied.
    fn find_adapters(&mut self, name: &str, path: &str, rows: Option<Range<usize>>, [outs, ins]: [usize; 2]) {
        let [tasks, rank] = self.adapters;
        let stored = |part: &str| format!("{path}.parametrizations.weight.0.lora_{part}");
        let Ok(second) = self.files.get(&stored("B")) else { return };
        let all = second.shape.get(1).copied().unwrap_or(0);
        let of_vectors = path.contains("embeddings.");
        for task in 0..tasks {
            let part = |part: &str, first: usize, [count, columns]: [usize; 2]| {
                let rows = Some(first..first + count);
                let place = PartLocation { rows, ..PartLocation::whole(stored(part)) };
                (format!("{name}.task.{task}.{}.weight", part.to_lowercase()), place, vec![count, columns])
            };
            if of_vectors {
                self.found.push(part("A", task * outs, [outs, rank]));
                self.found.push(part("B", task * rank, [rank, ins]));
            } else {
                let first = task * all + rows.as_ref().map_or(0, |rows| rows.start);
                self.found.push(part("A", task * rank, [rank, ins]));
                self.found.push(part("B", first, [outs, rank]));
            }
        }
    }

    /// A norm.
    pub(super) fn norm(&mut self, name: &str, path: &str, width: usize, kind: NormKind) {
        let ends: &[&str] = if kind == NormKind::LayerWithBias { &["weight", "bias"] } else { &["weight"] };
        let part = |end: &&str| (format!("{name}.{end}"), PartLocation::whole(self.stored(path, end)), vec![width]);
        let parts: Vec<EncoderPart> = ends.iter().map(part).collect();
        self.found.extend(parts);
    }

    /// The router and the experts of a layer, by the names that all mixtures have here. An expert's second matrix lies
    /// turned over, beside the first in GGUF as it is used.
    pub(super) fn experts(&mut self, layer: usize, before: &str, [count, inner, hidden]: [usize; 3]) {
        let router = self.path(before, &["mlp.router.layer", "ffn_gate_inp"]);
        self.linear(&part_names::layer(layer, "mlp.gate"), &router, [count, hidden], false);
        let path = |name: &str| format!("{}{before}{name}", self.prefix);
        let gguf = self.files.has(&path("ffn_up_exps.weight"));
        let (up, down) = if gguf {
            (path("ffn_up_exps.weight"), path("ffn_down_exps.weight"))
        } else {
            (path("mlp.experts.mlp.w1"), path("mlp.experts.mlp.w2"))
        };
        for expert in 0..count {
            let named = |part: &str| part_names::layer(layer, &format!("mlp.experts.{expert}.{part}.weight"));
            let place = |stored: &str, rows: usize, form| PartLocation {
                stored: stored.to_owned(),
                rows: Some(expert * rows..(expert + 1) * rows),
                form,
                every: None,
            };
            self.found.push((named("up_proj"), place(&up, inner, PlaceForm::AsStored), vec![inner, hidden]));
            let down =
                if gguf { place(&down, hidden, PlaceForm::AsStored) } else { place(&down, inner, PlaceForm::Turned) };
            self.found.push((named("down_proj"), down, vec![hidden, inner]));
        }
        let bias = path("mlp.experts.bias");
        if self.files.has(&bias) {
            self.found.push((format!("layer.{layer}.experts.bias"), PartLocation::whole(bias), vec![hidden]));
        }
    }

    /// A stored tensor's name. Norms had other ends in the first files of BERT, and a matrix with adapters is the
    /// original of a parametrisation.
    fn stored(&self, path: &str, end: &str) -> String {
        let usual = format!("{path}.{end}");
        let first = if end == "weight" { "gamma" } else { "beta" };
        let others = [format!("{path}.parametrizations.{end}.original"), format!("{path}.{first}")];
        if self.files.has(&usual) {
            return usual;
        }
        others.into_iter().find(|name| self.files.has(name)).unwrap_or(usual)
    }
}
