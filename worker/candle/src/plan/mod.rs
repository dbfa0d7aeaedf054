//! The decisions of a load that are made before a weight is read: the tensors, the devices, their layers and the memory
//! for them.

pub(crate) mod checked_model;
pub(crate) mod cut;
pub(crate) mod needs;
pub(crate) mod options;
pub(crate) mod part;
pub(crate) mod tower_plan;
