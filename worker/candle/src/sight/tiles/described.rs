//! Descriptions of models of tiles, from their files.

use model_boss_images::{
    FirstSize, ImageLayout, NewSize, PixelPlan, PixelScale, PixelSteps, Resample, SightFacts, SingleLayout, SplitLayout,
};
use serde_json::{Map, Value};

use super::model::{TilesModel, TowerRows};
use crate::error::ModelError;
use crate::sight::config::{SightConfig, unsupported, wrong, wrong_plan};
use crate::sight::projectors::ProjectorSpec;
use crate::spec::facts::activation;
use crate::vision::tower_spec::{ImageTowerSpec, TowerKind};

/// Gemma 3's steps where `preprocessor_config.json` does not say otherwise.
const GEMMA: PixelPlan = PixelPlan {
    size: NewSize::Sides { height: 224, width: 224 },
    square: true,
    steps: PixelSteps { resample: Resample::Bilinear, ..PixelPlan::SIGLIP.steps },
};

impl TilesModel {
    pub(super) fn read(config: &SightConfig) -> Result<Self, ModelError> {
        match config.model_type.as_str() {
            "gemma3" => gemma3(config),
            "idefics3" | "smolvlm" => idefics3(config),
            _ => llava(config),
        }
    }
}

/// A tower by its fields, with values for those that are left out.
fn tower(kind: TowerKind, config: &SightConfig, defaults: Value) -> Result<ImageTowerSpec, ModelError> {
    let mut fields = match defaults {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let given = config.vision.fields().iter().filter(|(_, value)| !value.is_null());
    fields.extend(given.map(|(key, value)| (key.clone(), value.clone())));
    // No vector of an image is made here.
    fields.insert("vision_use_head".to_owned(), false.into());
    ImageTowerSpec::from_config(kind, &fields)
}

fn gemma3(config: &SightConfig) -> Result<TilesModel, ModelError> {
    let tower = tower(TowerKind::Siglip, config, Value::Null)?;
    if config.image_flag("do_pan_and_scan", false)? {
        return Err(unsupported("an image processor with 'do_pan_and_scan'".to_owned()));
    }
    let tokens = config.whole.number("mm_tokens_per_image").map_err(wrong)?.unwrap_or(256).isqrt();
    let square = tower.grid.checked_div(tokens).filter(|square| *square > 0);
    let square =
        square.ok_or_else(|| unsupported(format!("{tokens} rows of places, for {} of patches", tower.grid)))?;
    let projector = ProjectorSpec::Pooled { square, eps: tower.stack.eps };
    let steps = GEMMA.steps(&config.images).map_err(wrong_plan)?;
    let places = projector.places(tower.grid, 0);
    if places != tokens * tokens {
        return Err(unsupported(format!("{tokens} rows of places, for {} of patches", tower.grid)));
    }
    let [begin, place, end] =
        [("boi_token", "<start_of_image>"), ("image_token", "<image_soft_token>"), ("eoi_token", "<end_of_image>")]
            .map(|(key, default)| config.token_name(key).unwrap_or(default).to_owned());
    let around = [format!("\n\n{begin}"), format!("{end}\n\n")];
    let layout = SingleLayout { steps, pad: None, size: (tower.side, tower.side), places, around };
    let facts = SightFacts {
        both_ways: true,
        mark: begin,
        token: config.image_token(262_144)?,
        place,
        layout: ImageLayout::Single(layout),
    };
    let scale = PixelScale::of(steps.factor, steps.normal);
    Ok(TilesModel { table: None, tower, projector, rows: TowerRows::Last, scale, facts })
}

fn idefics3(config: &SightConfig) -> Result<TilesModel, ModelError> {
    let defaults = serde_json::json!({
        "hidden_size": 1152, "intermediate_size": 3072, "num_attention_heads": 16, "patch_size": 32,
    });
    let stored = tower(TowerKind::Siglip, config, defaults)?;
    let square = config.whole.number("scale_factor").map_err(wrong)?.unwrap_or(2).max(1);
    let edge = |field: &str| config.images.get(field).and_then(|size| size.get("longest_edge")?.as_u64());
    let side = edge("max_image_size").unwrap_or(364) as usize;
    let grid = side / stored.patch;
    if grid == 0 || side > 1 << 14 || !side.is_multiple_of(stored.patch) || !grid.is_multiple_of(square) {
        let what = format!("tiles of {side} pixels, for patches of {} in squares of {square}", stored.patch);
        return Err(unsupported(what));
    }
    let tower = ImageTowerSpec { grid, side, ..stored };
    let projector = ProjectorSpec::Shuffled { square };
    let sides =
        |key: &str| config.images.get("size").and_then(|size| size.get(key)?.as_u64()).map(|side| side as usize);
    let first = match (sides("longest_edge"), sides("height"), sides("width")) {
        (Some(longest), ..) => FirstSize::Longest(longest),
        (None, Some(height), Some(width)) => FirstSize::Sides(height, width),
        _ => FirstSize::Longest(4 * 364),
    };
    let within = match first {
        FirstSize::Longest(longest) => (1..=1 << 14).contains(&longest),
        FirstSize::Sides(height, width) => height.min(width) > 0 && height.max(width) <= 1 << 14,
    };
    if !within {
        return Err(unsupported(format!("an image processor with the size {first:?}")));
    }
    let places = projector.places(grid, 0);
    let layout = SplitLayout {
        first: config.image_flag("do_resize", true)?.then_some(first),
        side,
        splits: config.image_flag("do_image_splitting", true)?,
        places,
        resample: config.resample(Resample::Lanczos)?,
    };
    let place = "<image>".to_owned();
    let facts = SightFacts {
        both_ways: false,
        mark: place.clone(),
        token: config.image_token(128_257)?,
        place,
        layout: ImageLayout::Split(layout),
    };
    let (factor, normal) = config.scale(([0.5; 3], [0.5; 3]))?;
    let scale = PixelScale::of(factor, normal);
    Ok(TilesModel { table: Some(stored.grid), tower, projector, rows: TowerRows::Last, scale, facts })
}

fn llava(config: &SightConfig) -> Result<TilesModel, ModelError> {
    let kind = match config.vision.text("model_type").map_err(wrong)?.unwrap_or("clip_vision_model") {
        "clip_vision_model" => TowerKind::Clip,
        "siglip_vision_model" => TowerKind::Siglip,
        other => return Err(unsupported(format!("a tower of type '{}'", other.escape_debug()))),
    };
    let tower = tower(kind, config, Value::Null)?;
    let full = match config.whole.text("vision_feature_select_strategy").map_err(wrong)?.unwrap_or("default") {
        "default" => false,
        "full" => true,
        other => return Err(unsupported(format!("vision_feature_select_strategy '{}'", other.escape_debug()))),
    };
    let layers = feature_layers(config, tower.stack.layers)?;
    let act = config.whole.text("projector_hidden_act").map_err(wrong)?.unwrap_or("gelu");
    let bias = config.whole.flag("multimodal_projector_bias").map_err(wrong)?.unwrap_or(true);
    let projector = ProjectorSpec::Mlp { activation: activation(act).map_err(wrong)?, bias };
    let rows = tower.grid * tower.grid + tower.rows_before() - usize::from(!full);
    let kind_of = config.images.get("image_processor_type").and_then(Value::as_str).unwrap_or_default();
    let usual = if kind == TowerKind::Siglip { PixelPlan::SIGLIP } else { PixelPlan::CLIP };
    let plan = match kind_of {
        "" => usual,
        // Its own has CLIP's steps, and may pad images to squares.
        name if name.starts_with("LlavaImageProcessor") => PixelPlan::CLIP,
        name => PixelPlan::of_processor(name)
            .filter(|plan| *plan != PixelPlan::SIGLIP_PATCHES)
            .ok_or_else(|| unsupported(format!("the image processor '{}'", name.escape_debug())))?,
    };
    let mut fields = config.images.clone();
    let padded = kind_of.starts_with("Llava") && config.image_flag("do_pad", false)?;
    if let (true, Some(fields)) = (padded, fields.as_object_mut()) {
        fields.remove("do_pad");
    }
    let steps = plan.steps(&fields).map_err(wrong_plan)?;
    let mean = config.scale(PixelPlan::CLIP.steps.normal.unwrap_or_default())?.1.map_or([0.0; 3], |(mean, _)| mean);
    let place = config.processor.get("image_token").and_then(Value::as_str).unwrap_or("<image>").to_owned();
    let layout = SingleLayout {
        steps,
        pad: padded.then(|| mean.map(|part| (f64::from(part) * 255.0) as u8)),
        size: (tower.side, tower.side),
        places: projector.places(tower.grid, rows),
        around: Default::default(),
    };
    let facts = SightFacts {
        both_ways: false,
        mark: place.clone(),
        token: config.image_token(32_000)?,
        place,
        layout: ImageLayout::Single(layout),
    };
    let scale = PixelScale::of(steps.factor, steps.normal);
    let rows = TowerRows::Behind { layers, first: full };
    Ok(TilesModel { table: None, tower, projector, rows, scale, facts })
}

/// How many layers rows pass: `vision_feature_layer`, which counts from the end where it is negative. The rows in front
/// of the layers are number 0.
fn feature_layers(config: &SightConfig, layers: usize) -> Result<Vec<usize>, ModelError> {
    let states = layers as i64 + 1;
    let one = |value: &Value| {
        let at = value.as_i64().map(|at| if at < 0 { at + states } else { at });
        let at = at.filter(|at| (0..states).contains(at)).and_then(|at| usize::try_from(at).ok());
        at.ok_or_else(|| unsupported(format!("vision_feature_layer {value} of a tower of {layers} layers")))
    };
    match config.whole.fields().get("vision_feature_layer") {
        None | Some(Value::Null) => one(&Value::from(-2)).map(|layer| vec![layer]),
        Some(Value::Array(all)) if !all.is_empty() => all.iter().map(one).collect(),
        Some(value) => one(value).map(|layer| vec![layer]),
    }
}
