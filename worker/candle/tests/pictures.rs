//! Models that paint beside `diffusers`: tiny random pipelines from `scripts/reference/pictures.py`, with the same
//! seeds.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

#[path = "family_cases/rule.rs"]
mod rule;

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model_boss_candle::load_painter;
use model_boss_engine::{BeginningImage, PaintError, Painter, Painting, PictureRequest};
use model_boss_images::{MaskImage, RgbImage};
use model_boss_protocol::DeviceId;
use rule::{TensorRule, safetensors};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct PictureCase {
    case: String,
    files: BTreeMap<String, Value>,
    weights: BTreeMap<String, WeightRules>,
    painted: Vec<Painted>,
}

#[derive(Deserialize)]
struct WeightRules {
    seed: u64,
    tensors: Vec<TensorRule>,
}

#[derive(Deserialize)]
struct Painted {
    prompt: String,
    negative: Option<String>,
    width: usize,
    height: usize,
    steps: usize,
    guidance: f32,
    scheduler: Option<String>,
    seeds: Vec<u64>,
    image: Option<usize>,
    strength: Option<f64>,
    mask: bool,
    clip_skip: Option<usize>,
    most: Option<usize>,
    latents: Vec<f32>,
    pictures: Option<Vec<String>>,
}

fn case(name: &str) -> PictureCase {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/pictures/{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

impl PictureCase {
    fn write(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        for (name, text) in &self.files {
            let text = text.as_str().map_or_else(|| text.to_string(), str::to_owned);
            put(name, text.as_bytes());
        }
        for (name, rules) in &self.weights {
            put(name, &safetensors(&rules.tensors, rules.seed));
        }
        folder
    }

    fn load(&self) -> (tempfile::TempDir, Box<dyn Painter>) {
        let folder = self.write();
        let painter = load_painter(folder.path(), &DeviceId::Cpu, &mut |_| {}).unwrap();
        (folder, painter)
    }
}

/// The picture that the script begins with.
fn beginning(number: usize, width: usize, height: usize) -> RgbImage {
    let byte = |at: usize| {
        let (channel, x, y) = (at % 3, at / 3 % width, at / 3 / width);
        ((x * (number + 2) + y * 13 + channel * 50 + x * y % 17 * 3) % 256) as u8
    };
    RgbImage::new(width, height, (0..3 * width * height).map(byte).collect()).unwrap()
}

fn masked(width: usize, height: usize) -> MaskImage {
    let byte = |at: usize| if at % width >= width / 3 && at / width >= 5 { 255 } else { 0 };
    MaskImage { width, height, bytes: (0..width * height).map(byte).collect() }
}

impl Painted {
    fn request(&self) -> PictureRequest {
        let &Self { width, height, .. } = self;
        PictureRequest {
            prompt: self.prompt.clone(),
            negative_prompt: self.negative.clone(),
            width,
            height,
            steps: self.steps,
            guidance_scale: self.guidance,
            scheduler: self.scheduler.clone(),
            seeds: self.seeds.clone(),
            beginning: self.image.map(|number| BeginningImage {
                image: beginning(number, width, height),
                strength: self.strength.unwrap(),
                mask: self.mask.then(|| masked(width, height)),
            }),
            max_sequence_length: self.most,
            clip_skip: self.clip_skip,
        }
    }
}

/// Makes all steps; returns how many.
fn paint(painting: &mut dyn Painting) -> usize {
    let mut made = 0;
    while !painting.progress().is_over() {
        made += 1;
        let progress = painting.step().unwrap();
        assert_eq!(progress.step, made);
    }
    made
}

fn check(name: &str) {
    let case = case(name);
    let (_folder, painter) = case.load();
    for painted in &case.painted {
        let what = format!(
            "{}: {:?} of {:?}, image {:?} {:?}, mask {}, guidance {}",
            case.case,
            painted.scheduler,
            painted.seeds,
            painted.image,
            painted.strength,
            painted.mask,
            painted.guidance
        );
        let mut painting = painter.start(&painted.request()).unwrap_or_else(|error| panic!("{what}: {error}"));
        paint(painting.as_mut());
        let ours = painting.latents();
        assert_eq!(ours.len(), painted.latents.len(), "{what}");
        let count = ours.len() as f32;
        let mean = painted.latents.iter().sum::<f32>() / count;
        let spread = (painted.latents.iter().map(|number| (number - mean).powi(2)).sum::<f32>() / count).sqrt();
        let worst = ours.iter().zip(&painted.latents).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f32::max);
        eprintln!("{what}: latents differ by {:.1e} of their spread", worst / spread);
        assert!(worst <= 1e-3 * spread, "{what}: {worst} of {spread}");
        let Some(theirs) = &painted.pictures else { continue };
        let pictures = painting.finish().unwrap();
        assert_eq!(pictures.len(), theirs.len());
        for (ours, theirs) in pictures.iter().zip(theirs) {
            assert_eq!([ours.width, ours.height], [painted.width, painted.height]);
            let theirs = STANDARD.decode(theirs).unwrap();
            let away: u64 =
                ours.bytes.iter().zip(&theirs).map(|(ours, theirs)| u64::from(ours.abs_diff(*theirs))).sum();
            let mean = away as f64 / theirs.len() as f64;
            eprintln!("{what}: pictures differ by {mean:.4} of 255");
            assert!(mean < 2.0, "{what}: {mean}");
        }
    }
}

#[test]
fn rc_25_pictures_of_stable_diffusion_are_those_of_diffusers() {
    check("sd-plain");
}

#[test]
fn rc_25_pictures_of_stable_diffusion_of_other_sizes_are_those_of_diffusers() {
    check("sd-other");
}

#[test]
fn rc_25_pictures_of_a_network_that_reads_masks_are_those_of_diffusers() {
    check("sd-inpaint");
}

#[test]
fn rc_25_pictures_of_xl_are_those_of_diffusers() {
    check("xl-plain");
}

#[test]
fn rc_25_pictures_of_flux_dev_are_those_of_diffusers() {
    check("flux-dev");
}

#[test]
fn rc_25_pictures_of_flux_schnell_are_those_of_diffusers() {
    check("flux-schnell");
}

#[test]
fn rc_25_pictures_of_stable_diffusion_3_are_those_of_diffusers() {
    check("sd3-plain");
}

#[test]
fn rc_25_pictures_of_stable_diffusion_3_5_without_t5_are_those_of_diffusers() {
    check("sd3-other");
}

#[test]
fn rc_25_pictures_of_stable_diffusion_3_have_limits_that_are_told_by_name() {
    let case = case("sd3-plain");
    let (_folder, painter) = case.load();
    let info = painter.info();
    assert_eq!((info.size_multiple, info.usual_size, info.longest_side), (8, [32, 32], 72));
    assert!(info.takes_negative_prompt && info.takes_image && !info.takes_mask);
    assert_eq!(info.components.len(), 5);
    let good = case.painted[0].request();
    let refused = |request: PictureRequest, field: &str, word: &str| match painter.start(&request) {
        Err(PaintError::Refused { field: named, why }) => {
            assert!(named == field && why.contains(word), "{named}: {why}")
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{word} was taken"),
    };
    refused(PictureRequest { width: 80, ..good.clone() }, "size", "width of 80");
    refused(PictureRequest { max_sequence_length: Some(0), ..good.clone() }, "max_sequence_length", "is 0");
    refused(PictureRequest { clip_skip: Some(2), ..good }, "clip_skip", "leaves out 3");
    let folder = case.write();
    let mut config = case.files["transformer/config.json"].clone();
    config["pooled_projection_dim"] = json!(33);
    std::fs::write(folder.path().join("transformer/config.json"), config.to_string()).unwrap();
    let Err(error) = load_painter(folder.path(), &DeviceId::Cpu, &mut |_| {}) else { panic!("33 was taken") };
    assert!(error.to_string().contains("vectors of texts of 33"), "{error}");
}

#[test]
fn rc_25_pictures_of_flux_have_limits_that_are_told_by_name() {
    let case = case("flux-dev");
    let (_folder, painter) = case.load();
    let info = painter.info();
    assert_eq!((info.size_multiple, info.usual_size, info.usual_steps), (8, [512, 512], 28));
    assert_eq!((info.usual_guidance, info.takes_negative_prompt, info.takes_mask), (3.5, false, false));
    assert_eq!(info.schedulers, ["flow_match_euler"]);
    assert_eq!(info.components.len(), 4);
    let good = case.painted[0].request();
    let refused = |request: PictureRequest, field: &str, word: &str| match painter.start(&request) {
        Err(PaintError::Refused { field: named, why }) => {
            assert!(named == field && why.contains(word), "{named}: {why}")
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{word} was taken"),
    };
    refused(PictureRequest { width: 44, ..good.clone() }, "size", "width of 44");
    refused(PictureRequest { max_sequence_length: Some(513), ..good.clone() }, "max_sequence_length", "is 513");
    refused(PictureRequest { scheduler: Some("euler".to_owned()), ..good.clone() }, "scheduler", "does not fit");
    refused(PictureRequest { steps: 0, ..good.clone() }, "steps", "0 steps");
    refused(PictureRequest { clip_skip: Some(1), ..good.clone() }, "clip_skip", "left out");
    let beginning = Some(BeginningImage { image: beginning(1, 20, 30), strength: 0.5, mask: Some(masked(20, 30)) });
    refused(PictureRequest { beginning, ..good }, "mask", "anew");
    let folder = case.write();
    let path = folder.path().join("transformer/config.json");
    let mut config = case.files["transformer/config.json"].clone();
    config["joint_attention_dim"] = json!(30);
    std::fs::write(&path, config.to_string()).unwrap();
    let Err(error) = load_painter(folder.path(), &DeviceId::Cpu, &mut |_| {}) else { panic!("30 was taken") };
    assert!(error.to_string().contains("texts in rows of 30"), "{error}");
}

#[test]
fn rc_25_pictures_do_not_change_with_those_beside_them_and_a_request_ends_between_steps() {
    let case = case("sd-plain");
    let (_folder, painter) = case.load();
    let one = PictureRequest { seeds: vec![3], ..case.painted[1].request() };
    let both = case.painted[1].request();
    assert_eq!(both.seeds[0], 3);
    let mut alone = painter.start(&one).unwrap();
    let mut beside = painter.start(&both).unwrap();
    // By turns, and a third one that is given up.
    painter.start(&one).unwrap().step().unwrap();
    while !alone.progress().is_over() {
        alone.step().unwrap();
        beside.step().unwrap();
    }
    let count = alone.latents().len();
    let worst = alone.latents().iter().zip(&beside.latents()[..count]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
    let before = alone.latents().to_vec();
    assert!(alone.step().unwrap().is_over());
    assert_eq!(alone.latents(), before, "nothing is behind the last step");
    let info = painter.info();
    assert_eq!((info.size_multiple, info.usual_size, info.usual_steps), (4, [32, 32], 50));
    assert_eq!(info.components.len(), 3);
    assert_eq!(info.usual_scheduler, "PNDMScheduler");
}

#[test]
fn rc_25_requests_that_cannot_be_served_are_refused_by_name() {
    let case = case("sd-plain");
    let (_folder, painter) = case.load();
    let good = case.painted[0].request();
    let refused = |request: PictureRequest, field: &str, word: &str| match painter.start(&request) {
        Err(PaintError::Refused { field: named, why }) => {
            assert!(named == field && why.contains(word), "{named}: {why}")
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{word} was taken"),
    };
    refused(PictureRequest { width: 42, ..good.clone() }, "size", "width of 42");
    refused(PictureRequest { height: 0, ..good.clone() }, "size", "height of 0");
    refused(PictureRequest { height: 1 << 20, ..good.clone() }, "size", "height of");
    refused(PictureRequest { seeds: Vec::new(), ..good.clone() }, "n", "no picture");
    refused(PictureRequest { steps: 0, ..good.clone() }, "steps", "0 steps");
    refused(PictureRequest { scheduler: Some("magic".to_owned()), ..good.clone() }, "scheduler", "'magic'");
    refused(PictureRequest { guidance_scale: f32::NAN, ..good.clone() }, "guidance_scale", "guidance");
    refused(PictureRequest { clip_skip: Some(3), ..good.clone() }, "clip_skip", "clip_skip");
    let begun = |strength, mask| {
        let beginning = Some(BeginningImage { image: beginning(1, 20, 30), strength, mask });
        PictureRequest { beginning, ..good.clone() }
    };
    refused(begun(0.0, None), "strength", "leaves none");
    refused(begun(1.5, None), "strength", "'strength' is 1.5");
    refused(begun(0.5, Some(MaskImage { width: 3, height: 3, bytes: vec![0; 8] })), "mask", "mask");
}

#[test]
fn rc_25_folders_that_cannot_be_used_are_refused_by_name() {
    let case = case("sd-plain");
    let refused = |file: &str, change: &dyn Fn(&mut Value), word: &str| {
        let folder = case.write();
        let mut value = case.files[file].clone();
        change(&mut value);
        std::fs::write(folder.path().join(file), value.to_string()).unwrap();
        let Err(error) = load_painter(folder.path(), &DeviceId::Cpu, &mut |_| {}) else { panic!("{file} was taken") };
        assert!(error.to_string().contains(word), "{error}");
    };
    let set = |name: &'static str, value: Value| move |fields: &mut Value| fields[name] = value.clone();
    refused("model_index.json", &set("_class_name", json!("MagicPipeline")), "MagicPipeline");
    refused("unet/config.json", &set("class_embed_type", json!("timestep")), "class_embed_type");
    refused("unet/config.json", &set("cross_attention_dim", json!(25)), "rows of 25");
    refused("unet/config.json", &set("block_out_channels", json!([16, 24, 40])), "has the shape");
    refused("unet/config.json", &set("norm_num_groups", json!(7)), "7 groups");
    refused("vae/config.json", &set("latent_channels", json!(5)), "latent pictures have 5");
    refused("vae/config.json", &set("_class_name", json!("AutoencoderTiny")), "AutoencoderTiny");
    refused("scheduler/scheduler_config.json", &set("_class_name", json!("LCMScheduler")), "LCMScheduler");
    refused("text_encoder/config.json", &set("vocab_size", json!(3)), "has the shape");
    let folder = case.write();
    std::fs::remove_file(folder.path().join("vae/diffusion_pytorch_model.safetensors")).unwrap();
    let Err(error) = load_painter(folder.path(), &DeviceId::Cpu, &mut |_| {}) else { panic!("no vae was needed") };
    assert!(error.to_string().contains("vae"), "{error}");
}
