//! ModelFacts of GGUF metadata, whose keys begin with the architecture's name.

use model_boss_weights::gguf::{Array, FromValue, GgufModel, Header, KeyError, TensorType, Value};

use crate::spec::fact_error::{FactError, FoundFact};

/// The metadata and the names of tensors of a GGUF model.
pub(crate) struct GgufFacts<'a> {
    pub(super) header: &'a Header<'a>,
    pub(super) model: &'a GgufModel,
    pub(super) architecture: &'a str,
}

impl<'a> GgufFacts<'a> {
    pub(crate) fn new(header: &'a Header<'a>, model: &'a GgufModel, architecture: &'a str) -> Self {
        Self { header, model, architecture }
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn missing(&self, name: &str) -> FactError {
        KeyError::Missing(self.key(name)).into()
    }

    pub(super) fn has(&self, tensor: &str) -> bool {
        self.model.get(tensor).is_some()
    }

    pub(super) fn find<T: FromValue<'a>>(&self, name: &str) -> FoundFact<T> {
        // A fact that only the other format has a key for.
        if name.is_empty() {
            return Ok(None);
        }
        Ok(self.header.find(&self.key(name))?)
    }

    pub(super) fn number(&self, name: &str) -> FoundFact<usize> {
        match self.numbers(name)? {
            None => self.find(name),
            Some(layers) => match layers.split_first() {
                Some((first, rest)) if rest.iter().all(|other| other == first) => Ok(Some(*first)),
                _ => Err(FactError::Unsupported(format!("layers that differ in `{}`", self.key(name)))),
            },
        }
    }

    pub(super) fn numbers(&self, name: &str) -> FoundFact<Vec<usize>> {
        let key = self.key(name);
        if name.is_empty() || !matches!(self.header.get(&key), Some(Value::Array(_))) {
            return Ok(None);
        }
        let array: Array<'_> = self.header.need(&key)?;
        let flags = || array.bools().map(|flags| flags.into_iter().map(usize::from).collect());
        let integers = array.integers().map(|all| all.into_iter().map(|n| usize::try_from(n).unwrap_or(0)).collect());
        Ok(integers.or_else(flags))
    }

    pub(super) fn floats(&self, name: &str) -> FoundFact<Vec<f32>> {
        let key = self.key(name);
        if name.is_empty() || !matches!(self.header.get(&key), Some(Value::Array(_))) {
            return Ok(None);
        }
        let array: Array<'_> = self.header.need(&key)?;
        Ok(array.floats())
    }

    pub(super) fn float(&self, name: &str) -> FoundFact<f64> {
        Ok(self.find::<f32>(name)?.map(f64::from))
    }

    pub(super) fn flag(&self, name: &str) -> FoundFact<bool> {
        self.find(name)
    }

    /// The rows of a matrix; 0 without it.
    pub(super) fn rows(&self, tensor: &str) -> usize {
        self.model.get(tensor).and_then(|tensor| tensor.shape.first()).copied().unwrap_or(0)
    }

    /// The numbers of a small tensor of f32.
    pub(super) fn values(&self, tensor: &str) -> FoundFact<Vec<f32>> {
        let Some(found) = self.model.get(tensor) else { return Ok(None) };
        if found.kind != TensorType::F32 || found.shape.len() != 1 {
            return Err(FactError::Unsupported(format!("factors in `{tensor}` of {}", found.kind)));
        }
        let words = self.model.bytes(found).as_chunks::<4>().0;
        Ok(Some(words.iter().map(|word| f32::from_le_bytes(*word)).collect()))
    }
}
