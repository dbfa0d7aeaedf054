//! Parked prefixes (EN-3): what a model's worker knows of conversations is kept while the model is not in memory, and
//! goes to its next worker. The contents are opaque here but for their checksums.
//!
//! | part | owns |
//! |---|---|
//! | `book` | which models have parked prefixes, how large, and which leave first; pure |
//! | `files` | the files of the state folder |
//! | `exchange` | the two requests to a worker |
//! | `desk` | all together: the bounds, the times, and what happens when |
//! | `report` | the figures for views and metrics |

mod book;
mod desk;
mod exchange;
mod files;
mod report;

pub(crate) use desk::{ParkingDesk, ParkingSetup};
pub(crate) use report::{ParkedModel, ParkingReport};
