//! Images of requests and answers: `data:` URLs, limits that are checked before anything is decoded, decoding, pixels
//! as models read them, and files of pictures that were painted. Nothing is fetched. The crate knows no model and no
//! device.
//!
//! The way of an image: [`image_bytes`] of its URL, [`ImageHeader`] for its size, [`decode`] to [`RgbImage`], and
//! [`PixelPlan`], from a model's `preprocessor_config.json`, to [`PixelPlanes`]. [`resize`] and [`crop_centre`] are the
//! steps by themselves.
#![allow(clippy::arithmetic_side_effects, reason = "sizes and pixels; nothing here adds to a clock's moment")]

mod crop;
mod data_url;
mod decode;
mod encode;
mod error;
mod lay_out;
mod limits;
mod mask;
mod new_size;
mod plan;
mod plan_fields;
mod planes;
mod resample;
mod rgb;
mod sight;
mod source_note;

pub use crop::crop_centre;
pub use data_url::image_bytes;
pub use decode::{ImageHeader, decode};
pub use encode::{EncodeImageError, PictureFormat, encode};
pub use error::{ImageError, ImagePlanError};
pub use lay_out::{ImagePartLaid, LaidImage};
pub use limits::ImageLimits;
pub use mask::{MaskImage, decode_mask};
pub use new_size::{NewSize, aspect_kept};
pub use plan::{PixelPlan, PixelSteps};
pub use plan_fields::{image_processor_fields, number_of, numbers_of, whole_of};
pub use planes::{PixelPlanes, PixelScale};
pub use resample::{Resample, resize};
pub use rgb::RgbImage;
pub use sight::{FirstSize, GridLayout, ImageLayout, SightFacts, SingleLayout, SplitLayout};
pub use source_note::PictureOrigin;
