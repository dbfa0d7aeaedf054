//! Drafts: tokens that are evaluated before it is known that they come, looked up or written by a second model.

mod balance;
mod draft;
mod lookup;
mod model;
mod plan;
mod row_cost;

pub(crate) use draft::{Draft, MOST_DRAFTED};
pub(crate) use lookup::Lookup;
pub(crate) use model::{DraftModel, DraftWish};
pub(crate) use plan::StepAhead;
pub(crate) use row_cost::RowCost;
