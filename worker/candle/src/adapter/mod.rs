//! Adapters (LoRA) of a decoder: low-rank products beside its matrices. Files of adapters become parts by the names of
//! the decoder's own parts, and a step's rows are computed with the parts of their sequences' adapters.

pub(crate) mod built;
pub(crate) mod dora;
pub(crate) mod gguf_adapter;
pub(crate) mod loader;
pub(crate) mod modules;
pub(crate) mod parts;
pub(crate) mod peft_config;
pub(crate) mod peft_folder;
pub(crate) mod rows;
pub(crate) mod stored;
pub(crate) mod targets;
