//! The tensors of a model that a load reads, each checked for presence, shape and type before any is read.

use model_boss_weights::gguf::TensorType;

use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::plan::tower_plan::TowerPlan;
use crate::spec::DecoderSpec;
use crate::spec::part_names::{EMBEDDING, FINAL_NORM, HEAD, HEAD_BIAS, Needed};

/// The tensors that will be read, after each was checked for presence, shape and type.
pub(crate) struct CheckedModel {
    embedding: &'static str,
    /// The name of the head's tensor; `None` if the embedding is the head.
    head: Option<&'static str>,
    /// The stored type of each matrix.
    pub(crate) matrices: Vec<TensorType>,
    /// The tensors of the tower of a model that sees, which is on the first device.
    tower: Vec<String>,
}

impl CheckedModel {
    pub(crate) fn new(
        spec: &DecoderSpec,
        files: &ModelFiles,
        tower: Option<&dyn TowerPlan>,
    ) -> Result<Self, ModelError> {
        let (embedding, head) = ends(spec, files);
        let tower = tower.map(TowerPlan::needed).unwrap_or_default();
        for needed in &tower {
            files.check(needed)?;
        }
        let tower = tower.into_iter().map(|needed| needed.name).collect();
        let mut plan = Self { embedding, head, matrices: Vec::new(), tower };
        let mut matrices = Vec::new();
        for needed in plan.needed(spec) {
            let stored = files.check(&needed)?;
            matrices.extend(needed.is_matrix().then_some(stored.kind));
        }
        plan.matrices = matrices;
        Ok(plan)
    }

    /// The descriptions of all tensors that are read.
    fn needed<'s>(&self, spec: &'s DecoderSpec) -> impl Iterator<Item = Needed> + use<'s> {
        let shape = spec.embedding_shape();
        let ends = std::iter::once(self.embedding).chain(self.head);
        let bias = spec.head_bias.then(|| Needed { name: HEAD_BIAS.to_owned(), shape: vec![spec.vocab] });
        let ends = ends.map(move |name| Needed { name: name.to_owned(), shape: shape.clone() });
        ends.chain(bias).chain(spec.needed())
    }

    /// The names of the tensors outside of layers that a device reads, if it is the first, the last, or the only one.
    pub(crate) fn ends(&self, spec: &DecoderSpec, is_first: bool, is_last: bool) -> Vec<String> {
        let mut names = Vec::new();
        let beside = |needed: Vec<Needed>| needed.into_iter().map(|needed| needed.name);
        if is_first {
            names.push(self.embedding.to_owned());
            names.extend(beside(spec.needed_before_layers()));
            names.extend(self.tower.iter().cloned());
        }
        if is_last {
            names.push(FINAL_NORM.to_owned());
            // An embedding that is also the head is read once for each device.
            names.extend(self.head.or((!is_first).then_some(self.embedding)).map(str::to_owned));
            names.extend(beside(spec.needed_behind_layers()));
        }
        names
    }

    /// Bytes that one layer needs on a device.
    pub(crate) fn layer_bytes(
        &self,
        spec: &DecoderSpec,
        files: &ModelFiles,
        target: &WeightTarget,
        layer: usize,
    ) -> Result<u64, ModelError> {
        let needed = spec.needed_by_layer(layer);
        needed.iter().try_fold(0u64, |total, needed| Ok(total.saturating_add(target.bytes(&files.get(&needed.name)?))))
    }

    /// Bytes of embedding and tower, last norm and head on a device, each with what is beside it. The head has 0 if the
    /// embedding is the head.
    pub(crate) fn end_bytes(
        &self,
        spec: &DecoderSpec,
        files: &ModelFiles,
        target: &WeightTarget,
    ) -> Result<[u64; 3], ModelError> {
        let bytes = |name: &str| files.get(name).map(|stored| target.bytes(&stored));
        let all =
            |needed: Vec<Needed>| needed.iter().map(|needed| bytes(&needed.name)).sum::<Result<u64, ModelError>>();
        let head = self.head.map_or(Ok(0), bytes)?;
        let tower = self.tower.iter().map(|name| bytes(name)).sum::<Result<u64, ModelError>>()?;
        let embedding = bytes(self.embedding)? + all(spec.needed_before_layers())? + tower;
        Ok([embedding, bytes(FINAL_NORM)? + all(spec.needed_behind_layers())?, head])
    }

    /// Reads the embedding, for the first device.
    pub(crate) fn read_embedding(&self, reader: &mut dyn NamedWeights) -> Result<Matrix, ModelError> {
        reader.matrix(self.embedding)
    }

    /// Reads the norm after the last layer, and the head. `embedding` is given if it is on the same device.
    pub(crate) fn read_head(
        &self,
        reader: &mut dyn NamedWeights,
        spec: &DecoderSpec,
        embedding: Option<&Matrix>,
    ) -> Result<(Norm, Linear), ModelError> {
        let norm = Norm::read(reader, FINAL_NORM.trim_end_matches(".weight"), spec.norm)?;
        let head = match (self.head, embedding) {
            (Some(name), _) => reader.matrix(name)?,
            (None, Some(embedding)) => embedding.clone(),
            (None, None) => reader.matrix(self.embedding)?,
        };
        let bias = if spec.head_bias { Some(reader.tensor(HEAD_BIAS)?) } else { None };
        Ok((norm, Linear::new(head, bias).named(HEAD.trim_end_matches(".weight"))))
    }
}

/// The tensors that hold embedding and head. A model that ties them may store either name, or both. If it stores both,
/// they count as one only if their contents are equal, as in `transformers`.
fn ends(spec: &DecoderSpec, files: &ModelFiles) -> (&'static str, Option<&'static str>) {
    if !spec.tied_head {
        return (EMBEDDING, Some(HEAD));
    }
    match (files.has(EMBEDDING), files.has(HEAD)) {
        (true, true) if !same(files, EMBEDDING, HEAD) => (EMBEDDING, Some(HEAD)),
        (false, true) => (HEAD, None),
        _ => (EMBEDDING, None),
    }
}

fn same(files: &ModelFiles, one: &str, other: &str) -> bool {
    match (files.get(one), files.get(other)) {
        (Ok(one), Ok(other)) if (one.kind, &one.shape) == (other.kind, &other.shape) => {
            one.bytes().ok().is_some_and(|bytes| other.bytes().is_ok_and(|others| bytes == others))
        }
        _ => false,
    }
}
