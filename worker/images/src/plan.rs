//! The steps from an image to a model's numbers, as `preprocessor_config.json` describes them.

use serde_json::Value;

use crate::crop::crop_centre;
use crate::error::{ImageError, ImagePlanError};
use crate::new_size::NewSize;
use crate::plan_fields::{flag, number_of, numbers_of, sides_of, whole_of};
use crate::planes::{PixelPlanes, PixelScale};
use crate::resample::{Resample, resize};
use crate::rgb::RgbImage;

/// Pixels that an image may have once it is resized: a long strip whose short side becomes that of a model has many.
const MOST_PIXELS: u64 = 48 << 20;

/// The steps by which an image becomes a model's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PixelSteps {
    /// The size that images get; none where they stay as they are.
    pub size: Option<NewSize>,
    /// The filter of the resizing.
    pub resample: Resample,
    /// Rows and pixels of a row that are cut out of the middle.
    pub crop: Option<(usize, usize)>,
    /// The factor of bytes.
    pub factor: Option<f64>,
    /// Mean and deviation by colour.
    pub normal: Option<([f32; 3], [f32; 3])>,
}

/// The steps of one kind of models, which hold where `preprocessor_config.json` does not say otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PixelPlan {
    /// The size, whether or not images get it.
    pub size: NewSize,
    /// Whether `size` as one number is that of both sides, not that of the short one.
    pub square: bool,
    /// The steps but for the size.
    pub steps: PixelSteps,
}

impl PixelPlan {
    const ONE_255TH: f64 = 1.0 / 255.0;

    /// CLIP's: 224 pixels on the short side, the middle of them, and the colours of its training.
    pub const CLIP: Self = Self {
        size: NewSize::Shortest { edge: 224, longest: None },
        square: false,
        steps: PixelSteps {
            size: None,
            resample: Resample::Bicubic,
            crop: Some((224, 224)),
            factor: Some(Self::ONE_255TH),
            normal: Some(([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1])),
        },
    };

    /// SigLIP 2's for images of any proportions: at most 256 patches of 16 pixels.
    pub const SIGLIP_PATCHES: Self = Self {
        size: NewSize::Patches { side: 16, most: 256 },
        square: false,
        steps: PixelSteps { resample: Resample::Bilinear, ..Self::SIGLIP.steps },
    };

    /// SigLIP's: 224 pixels on both sides, from -1 to 1.
    pub const SIGLIP: Self = Self {
        size: NewSize::Sides { height: 224, width: 224 },
        square: false,
        steps: PixelSteps {
            size: None,
            resample: Resample::Bicubic,
            crop: None,
            factor: Some(Self::ONE_255TH),
            normal: Some(([0.5; 3], [0.5; 3])),
        },
    };

    /// The steps of the image processor with this `image_processor_type`; none of one that is not known.
    pub fn of_processor(name: &str) -> Option<Self> {
        let ends = ["Fast", "Pil"];
        let name = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        match name {
            "CLIPImageProcessor" | "CLIPFeatureExtractor" => Some(Self::CLIP),
            "SiglipImageProcessor" => Some(Self::SIGLIP),
            "Siglip2ImageProcessor" => Some(Self::SIGLIP_PATCHES),
            _ => None,
        }
    }

    /// The steps with the fields of `preprocessor_config.json`. A field that is absent or null has this plan's value.
    pub fn steps(&self, fields: &Value) -> Result<PixelSteps, ImagePlanError> {
        if flag(fields, "do_pad")?.unwrap_or(false) {
            return Err(ImagePlanError::new("do_pad", "is true; images of this kind of model get no borders"));
        }
        let square = flag(fields, "default_to_square")?.unwrap_or(self.square);
        let size = match self.size {
            NewSize::Patches { side, most } => NewSize::Patches {
                side: whole_of(fields, "patch_size")?.unwrap_or(side),
                most: whole_of(fields, "max_num_patches")?.unwrap_or(most),
            },
            fixed => sides_of(fields, "size", square)?.unwrap_or(fixed),
        };
        let resample = match number_of(fields, "resample")? {
            Some(number) => Resample::of_number(number as u64)
                .ok_or_else(|| ImagePlanError::new("resample", "is no filter of Pillow's"))?,
            None => self.steps.resample,
        };
        let crop = match sides_of(fields, "crop_size", true)? {
            Some(NewSize::Sides { height, width }) => Some((height, width)),
            Some(_) => return Err(ImagePlanError::new("crop_size", "has to have 'height' and 'width'")),
            None => self.steps.crop,
        };
        let crops = flag(fields, "do_center_crop")?.unwrap_or(self.steps.crop.is_some());
        if crops && crop.is_none() {
            return Err(ImagePlanError::new("crop_size", "is missing, though 'do_center_crop' is true"));
        }
        let factor = number_of(fields, "rescale_factor")?.unwrap_or(self.steps.factor.unwrap_or(Self::ONE_255TH));
        if !(factor.is_finite() && factor > 0.0) {
            return Err(ImagePlanError::new("rescale_factor", "has to be above 0"));
        }
        let rescales = flag(fields, "do_rescale")?.unwrap_or(self.steps.factor.is_some());
        let (mean, deviation) = self.steps.normal.unwrap_or(([0.5; 3], [0.5; 3]));
        let normal =
            (numbers_of(fields, "image_mean")?.unwrap_or(mean), numbers_of(fields, "image_std")?.unwrap_or(deviation));
        if normal.1.contains(&0.0) {
            return Err(ImagePlanError::new("image_std", "must not have a 0"));
        }
        let normalises = flag(fields, "do_normalize")?.unwrap_or(self.steps.normal.is_some());
        Ok(PixelSteps {
            size: flag(fields, "do_resize")?.unwrap_or(true).then_some(size),
            resample,
            crop: crop.filter(|_| crops),
            factor: rescales.then_some(factor),
            normal: normalises.then_some(normal),
        })
    }
}

impl PixelSteps {
    /// The image with the size that the model reads.
    pub fn sized(&self, image: RgbImage) -> Result<RgbImage, ImageError> {
        let image = match self.size {
            Some(size) => {
                let (height, width) = size.of(image.height, image.width);
                if (height as u64).saturating_mul(width as u64) > MOST_PIXELS {
                    return Err(ImageError::TooLong {
                        width: image.width as u32,
                        height: image.height as u32,
                        new_width: width as u64,
                        new_height: height as u64,
                    });
                }
                resize(&image, width, height, self.resample)
            }
            None => image,
        };
        Ok(match self.crop {
            Some((height, width)) if (height, width) != (image.height, image.width) => {
                crop_centre(&image, width, height)
            }
            _ => image,
        })
    }

    /// The model's numbers for an image.
    pub fn planes(&self, image: RgbImage) -> Result<PixelPlanes, ImageError> {
        Ok(PixelScale::of(self.factor, self.normal).planes(&self.sized(image)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn size(fields: Value) -> Option<NewSize> {
        PixelPlan::CLIP.steps(&fields).unwrap().size
    }

    #[test]
    fn em_3_sizes_have_old_and_new_forms() {
        let shortest = |edge| Some(NewSize::Shortest { edge, longest: None });
        assert_eq!(size(json!({})), shortest(224));
        assert_eq!(size(json!({"size": 336, "crop_size": 336})), shortest(336));
        assert_eq!(size(json!({"size": {"shortest_edge": 64}})), shortest(64));
        assert_eq!(
            size(json!({"size": 64, "default_to_square": true})),
            Some(NewSize::Sides { height: 64, width: 64 })
        );
        assert_eq!(size(json!({"size": [32, 48]})), Some(NewSize::Sides { height: 32, width: 48 }));
        assert_eq!(size(json!({"size": {"height": 8, "width": 9}})), Some(NewSize::Sides { height: 8, width: 9 }));
        assert_eq!(size(json!({"size": null, "do_resize": false})), None);
        for wrong in
            [json!({"size": {"longest_edge": 4}}), json!({"size": 0}), json!({"size": "x"}), json!({"do_pad": true})]
        {
            assert!(PixelPlan::CLIP.steps(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn em_3_steps_can_be_left_out() {
        let steps = PixelPlan::CLIP
            .steps(&json!({"do_center_crop": false, "do_rescale": false, "do_normalize": false, "resample": 1}))
            .unwrap();
        let none = PixelSteps {
            size: Some(PixelPlan::CLIP.size),
            resample: Resample::Lanczos,
            crop: None,
            factor: None,
            normal: None,
        };
        assert_eq!(steps, none);
        let steps =
            PixelPlan::SIGLIP.steps(&json!({"image_mean": 0.25, "do_center_crop": true, "crop_size": 8})).unwrap();
        assert_eq!((steps.crop, steps.normal), (Some((8, 8)), Some(([0.25; 3], [0.5; 3]))));
        assert!(PixelPlan::SIGLIP.steps(&json!({"do_center_crop": true})).is_err());
    }
}
