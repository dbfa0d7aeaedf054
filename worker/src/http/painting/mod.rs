//! `POST /v1/images/generations` and `/v1/images/edits`, as OpenAI's API has them, with the fields of `diffusers`
//! beside its own.

mod answer;
mod edit;
mod fields;
mod given_images;
mod routes;
mod stream;

pub(super) use fields::check_picture_defaults;
pub(super) use routes::{edit, generate};
