//! The metadata of GGUF files about the steps behind a model's layers, as llama.cpp writes and reads it.

use std::path::Path;

use model_boss_weights::gguf::GgufModel;
use model_boss_weights::model_folder;

use super::pooling::{DenseActivation, DenseFile, PoolStep, Pooling};
use super::sentence_folder::SentenceFolder;
use crate::error::ModelError;
use crate::spec::ConfigJsonError;

/// Products behind the pooling, in their order.
const DENSE: [&str; 2] = ["dense_2", "dense_3"];

/// The steps that a file names; by `otherwise`, where it names no pooling.
pub(super) fn described(file: &Path, model: &GgufModel, otherwise: Pooling) -> Result<SentenceFolder, ModelError> {
    let mut steps = vec![PoolStep::Pool(vec![pooling_of(model, otherwise)?])];
    for name in DENSE {
        if let Some(stored) = model.get(&format!("{name}.weight")) {
            let [rows, columns] = stored.shape[..] else {
                let what = format!("has the shape {:?}, which is no matrix", stored.shape);
                return Err(ModelError::Tensor { name: format!("{name}.weight"), what });
            };
            let at = DenseFile::Gguf(file.to_owned(), name);
            let activation = DenseActivation::Identity;
            steps.push(PoolStep::Dense { at, shape: [rows, columns], bias: false, activation, residual: false });
        }
    }
    steps.push(PoolStep::Normalise);
    SentenceFolder::plain(model_folder(file), steps)
}

/// The pooling that a file names, by llama.cpp's numbers.
fn pooling_of(model: &GgufModel, otherwise: Pooling) -> Result<Pooling, ModelError> {
    let header = model.header()?;
    let architecture: Option<&str> = header.find("general.architecture").ok().flatten();
    let kind: Option<u32> = architecture.and_then(|name| header.find(&format!("{name}.pooling_type")).ok().flatten());
    match kind {
        None | Some(0) => Ok(otherwise),
        Some(1) => Ok(Pooling::Mean),
        Some(2) => Ok(Pooling::First),
        Some(3) => Ok(Pooling::Last),
        Some(other) => {
            let what = format!("the pooling {other} makes no vector of a text");
            Err(ModelError::Config(ConfigJsonError::Malformed(what)))
        }
    }
}
