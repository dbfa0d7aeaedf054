//! Models that paint: text in, pictures out. Rows of tensors are pixels, one behind the other, row by row.

mod component;
mod flux;
mod layers;
mod load;
mod pipeline;
mod schedulers;
mod sd3;
mod streams;
mod text;
mod unet;
mod vae;

pub use load::load_painter;
