//! Towers beside `transformers`: the cases of `scripts/reference/towers.py`.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model_boss_images::{ImageLimits, decode};
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::rule::{TensorRule, safetensors};

#[derive(Deserialize)]
struct TowersCase {
    case: String,
    files: BTreeMap<String, serde_json::Value>,
    weights: BTreeMap<String, TowerWeights>,
    texts: Vec<Vec<u32>>,
    images: Vec<String>,
    pixels: (Vec<usize>, Vec<f32>),
    of_pixels: Vec<f32>,
    rows: Vec<Vec<f32>>,
    vectors: [Vec<Vec<f32>>; 2],
    logits: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct TowerWeights {
    seed: u64,
    tensors: Vec<TensorRule>,
}

impl TowersCase {
    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/towers");
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 5, "cases are missing");
        files.iter().map(|file| serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()).collect()
    }

    fn named(name: &str) -> Self {
        Self::all().into_iter().find(|case| case.case == name).unwrap()
    }

    fn write(&self, folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
        self.files.iter().for_each(|(name, text)| write(name, text.to_string().as_bytes()));
        self.weights.iter().for_each(|(name, rules)| write(name, &safetensors(&rules.tensors, rules.seed)));
    }

    fn loaded(&self) -> Box<dyn TextEncoder> {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        load_towers(folder.path(), &DeviceId::Cpu, &mut |_| {}).unwrap_or_else(|error| panic!("{}: {error}", self.case))
    }

    fn texts(&self) -> Vec<EncoderText<'_>> {
        self.texts.iter().map(|tokens| EncoderText::one(tokens)).collect()
    }

    fn planes(&self, towers: &dyn TextEncoder) -> Vec<PixelPlanes> {
        let steps = towers.sight().unwrap().pixels;
        let planes = |file: &String| {
            let image = decode(&STANDARD.decode(file).unwrap(), &ImageLimits::default()).unwrap();
            steps.planes(image).unwrap()
        };
        self.images.iter().map(planes).collect()
    }

    /// The reference's own numbers of the first image.
    fn exact(&self) -> PixelPlanes {
        let (shape, values) = &self.pixels;
        PixelPlanes { height: shape[1], width: shape[2], values: values.clone() }
    }
}

fn apart(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

#[test]
fn em_3_towers_give_the_vectors_of_the_reference() {
    for case in TowersCase::all() {
        let mut towers = case.loaded();
        assert_eq!(towers.info().width, case.of_pixels.len(), "{}", case.case);
        let texts = towers.encode(&case.texts()).unwrap();
        for (ours, theirs) in texts.iter().zip(&case.vectors[0]) {
            assert!(apart(ours, theirs) < 5e-6, "{}: {}", case.case, apart(ours, theirs));
        }
        let exact = towers.encode_images(&[&case.exact()]).unwrap();
        assert!(apart(&exact[0], &case.of_pixels) < 5e-6, "{}: {}", case.case, apart(&exact[0], &case.of_pixels));
        let planes = case.planes(towers.as_ref());
        assert!((planes[0].height, planes[0].width) == (case.pixels.0[1], case.pixels.0[2]), "{}", case.case);
        let images = towers.encode_images(&planes.iter().collect::<Vec<_>>()).unwrap();
        // Pixels differ by one unit here and there.
        for (ours, theirs) in images.iter().zip(&case.vectors[1]) {
            let cosine: f32 = ours.iter().zip(theirs).map(|(one, other)| one * other).sum();
            assert!(cosine > 0.9999, "{}: {cosine}", case.case);
        }
    }
}

#[test]
fn em_3_comparisons_are_those_of_the_reference() {
    for case in TowersCase::all() {
        let mut towers = case.loaded();
        let texts = towers.encode(&case.texts()).unwrap();
        let images = towers.encode_images(&[&case.exact()]).unwrap();
        let sight = towers.sight().unwrap();
        let dot = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(one, other)| one * other).sum::<f32>();
        for (text, theirs) in texts.iter().zip(&case.logits[0]) {
            let ours = dot(text, &images[0]) * sight.scale + sight.bias;
            assert!((ours - theirs).abs() < 1e-4, "{}: {ours} for {theirs}", case.case);
        }
        let together = case.case.starts_with("clip");
        assert_eq!(sight.shares == LabelShares::Together, together, "{}", case.case);
    }
}

#[test]
fn em_5_a_vector_does_not_depend_on_the_images_and_texts_beside_it() {
    for case in TowersCase::all() {
        let mut towers = case.loaded();
        let planes = case.planes(towers.as_ref());
        let all: Vec<&PixelPlanes> = planes.iter().chain(&planes).rev().collect();
        let together = towers.encode_images(&all).unwrap();
        for (image, together) in all.iter().zip(&together) {
            let alone = towers.encode_images(&[image]).unwrap();
            assert!(apart(&alone[0], together) < 1e-5, "{}: {}", case.case, apart(&alone[0], together));
        }
        let texts = case.texts();
        let together = towers.encode(&texts).unwrap();
        for (text, together) in texts.iter().zip(&together) {
            assert!(apart(&towers.encode(&[*text]).unwrap()[0], together) < 1e-5, "{}", case.case);
        }
    }
}

/// Models that write text about images take the rows of some layer.
#[test]
fn em_3_rows_of_each_layer_can_be_had() {
    for case in TowersCase::all() {
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        let (files, config) = ModelFiles::plain(folder.path()).unwrap();
        let spec = TowersSpec::from_config(&config).unwrap().image;
        let target = WeightTarget::of(candle_core::Device::Cpu, &[], KvCacheType::Auto).unwrap();
        let mut ignored = |_| {};
        let mut reader = WeightReader::new(&files, &target, 1, &mut ignored);
        let tower = ImageTower::read(&mut reader, &spec, &target, IMAGE).unwrap();
        let rows = tower.rows(&[&case.exact()], tower.layers() - 1).unwrap();
        let ours = rows.rows.to_vec2::<f32>().unwrap();
        let all = 0..case.rows.len();
        assert_eq!((ours.len(), &rows.ranges[..]), (all.len(), std::slice::from_ref(&all)), "{}", case.case);
        for (ours, theirs) in ours.iter().zip(&case.rows) {
            assert!(apart(ours, theirs) < 1e-4, "{}: {}", case.case, apart(ours, theirs));
        }
    }
}

#[test]
fn em_3_every_type_that_the_coordinator_sends_here_is_known() {
    for kind in model_boss_protocol::TOWER_TYPES {
        assert!(TowersSpec::from_config(format!("{{\"model_type\":\"{kind}\"}}").as_bytes()).is_ok(), "{kind}");
    }
}

#[test]
fn em_3_a_folder_of_sentence_transformers_has_the_towers_inside() {
    let case = TowersCase::named("clip-gelu");
    let folder = tempfile::tempdir().unwrap();
    case.write(&folder.path().join("0_CLIPModel"));
    let modules =
        json!([{"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]);
    std::fs::write(folder.path().join("modules.json"), modules.to_string()).unwrap();
    let mut towers = load_towers(folder.path(), &DeviceId::Cpu, &mut |_| {}).unwrap();
    assert!(apart(&towers.encode(&case.texts()).unwrap()[0], &case.vectors[0][0]) < 5e-6);
}

#[test]
fn em_3_what_no_tower_can_do_is_refused_by_name() {
    let refused = |name: &str, change: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        TowersCase::named(name).write(folder.path());
        change(folder.path());
        load_towers(folder.path(), &DeviceId::Cpu, &mut |_| {}).err().unwrap().to_string()
    };
    let put = |folder: &Path, name: &str, from: &str, to: &str| {
        let path = folder.join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
    };
    for (name, file, from, to, said) in [
        ("siglip", "config.json", "\"num_hidden_layers\":3", "\"num_hidden_layers\":4", "layers.3."),
        ("siglip", "config.json", "\"vocab_size\":90", "\"vocab_size\":91", "token_embedding"),
        ("siglip", "config.json", "\"siglip\"", "\"siglop\"", "'siglop'"),
        ("siglip", "preprocessor_config.json", "18", "20", "20x20"),
        ("siglip", "preprocessor_config.json", "SiglipImageProcessor", "OddImageProcessor", "OddImageProcessor"),
        ("siglip", "preprocessor_config.json", "SiglipImageProcessor", "Siglip2ImageProcessor", "another kind"),
        (
            "clip-gelu",
            "preprocessor_config.json",
            "\"crop_size\"",
            "\"do_center_crop\":false,\"crop_size\"",
            "many sizes",
        ),
        ("siglip2", "preprocessor_config.json", "\"patch_size\":4", "\"patch_size\":8", "patch_size is 8"),
        ("siglip", "tokenizer.json", "\"id\":1", "\"id\":900", "the token 900"),
    ] {
        let error = refused(name, &|folder| put(folder, file, from, to));
        assert!(error.contains(said), "{to}: {error}");
    }
    let missing = refused("siglip", &|folder| std::fs::remove_file(folder.join("preprocessor_config.json")).unwrap());
    assert!(missing.contains("preprocessor_config.json is missing"), "{missing}");
    let mut towers = TowersCase::named("siglip").loaded();
    for text in [vec![], vec![5; 13], vec![99]] {
        assert!(towers.encode(&[EncoderText::one(&text)]).is_err());
    }
    assert!(towers.encode_images(&[&PixelPlanes { width: 2, height: 2, values: vec![0.0; 12] }]).is_err());
    assert!(towers.encode_images(&[]).unwrap().is_empty() && towers.encode(&[]).unwrap().is_empty());
}
