//! Families of models compared with `transformers`, on tiny random ones under `families/` from
//! `scripts/reference/families.py`. A case has a configuration, the shapes of its tensors, prompts and answers; weights
//! are made here by the rule that the script has.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

mod family_cases;

use std::collections::{BTreeMap, BTreeSet};

use family_cases::{Case, alone, best, case_files, device, greedy, open, report, same_bits_within, step, worst};
use model_boss_candle::{DecoderLoadOptions, DeviceOptions, load_over, load_with};
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::{Logits, Sequences};
use model_boss_protocol::{DeviceId, ResidencyMode};
use model_boss_weights::gguf::GgufModel;

/// The tolerance for models stored in f32: the largest difference of a logit from the reference.
const TOLERANCE: f32 = 1e-3;

/// The tolerance for models whose products round activations to eight bits, as a share of the largest logit. Heads and
/// groups of tiny models are narrow, so that rounding shows more than in real ones.
const ROUNDED: f32 = 0.08;

/// The tolerance where activations are bf16: on GPUs. Rounding may then change the choice of an expert. With noise of
/// that size in its products, transformers itself is off by less than 0.07, or by 0.32 to 0.37 where a choice changes.
const ROUNDED_TO_BF16: f32 = 0.4;

/// The tolerance for models with matrices in blocks.
fn rounded() -> f32 {
    if device() == DeviceId::Cpu { ROUNDED } else { ROUNDED_TO_BF16 }
}

#[test]
fn fa_1_every_family_answers_as_transformers_does() {
    let mut faults = Vec::new();
    for case in Case::all() {
        let result = case.check_alone();
        report(&case.name, &result);
        match result {
            Ok(apart) if apart < if case.is_quantised() { rounded() } else { TOLERANCE } => {}
            Ok(apart) => faults.push(format!("{}: off by {apart}", case.name)),
            Err(what) => faults.push(format!("{}: {what}", case.name)),
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn en_2_layers_that_share_keys_and_values_keep_them_once() {
    // `MODEL_BOSS_FAMILY` may have left it out.
    let Some(case) = Case::all().into_iter().find(|case| case.name == "gemma3n/text") else { return };
    // Two of four layers have their own: two key heads of eight elements, keys and values in f32.
    let (layers, heads, width, both) = (2, 2, 8, 2);
    assert_eq!(open(case.folder()).info().kv_bytes_per_token, layers * heads * width * both * size_of::<f32>());
}

/// A tensor that a family does not know would be found by its warning.
#[test]
fn fa_1_no_tensor_of_a_layer_is_left_unread() {
    let files = case_files("gguf").into_iter().map(|file| (Case::read(&file.with_extension("json")), Some(file)));
    for (case, file) in
        Case::all().into_iter().map(|case| (case, None)).chain(files).filter(|(case, _)| case.is_known())
    {
        let decoder = open(file.as_deref().unwrap_or_else(|| case.folder()));
        assert_eq!(decoder.info().warnings, Vec::<String>::new(), "{}, {file:?}", case.name);
    }
}

#[test]
fn fa_1_who_shares_a_step_changes_no_bit_in_any_family() {
    for case in Case::all() {
        let mut decoder = open(case.folder());
        let prompts: Vec<&Vec<u32>> = case.usable_prompts(decoder.info().context_length);
        let slots: Vec<_> = prompts.iter().map(|prompt| decoder.open(prompt.len()).unwrap()).collect();
        let batch: Vec<_> = prompts.iter().zip(&slots).map(|(prompt, kv)| step(*kv, prompt, Logits::Last)).collect();
        let together = decoder.forward(&batch).unwrap();
        for (prompt, together) in prompts.iter().zip(together) {
            let kv = decoder.open(prompt.len()).unwrap();
            let apart = worst(&alone(&mut decoder, kv, prompt, Logits::Last), &together);
            let gpu = device() != DeviceId::Cpu;
            let within = if gpu && case.is_quantised() { ROUNDED_TO_BF16 } else { same_bits_within() };
            assert!(apart <= within, "{}: {apart} apart", case.name);
        }
    }
}

#[test]
fn fa_1_prompts_in_pieces_beside_a_decoding_neighbour() {
    for case in Case::all().into_iter().filter(|case| !case.is_quantised()) {
        let mut decoder = open(case.folder());
        let usable = case.usable_prompts(decoder.info().context_length).len();
        let (short, long) = (0, usable - 1);
        let neighbour = decoder.open(64).unwrap();
        let mut answer = Vec::new();
        let mut next = [best(&alone(&mut decoder, neighbour, &case.prompts[short], Logits::Last))];
        let kv = decoder.open(64).unwrap();
        let mut logits = Vec::new();
        for piece in case.prompts[long].chunks(7) {
            answer.push(next[0]);
            let batch = [step(kv, piece, Logits::Last), step(neighbour, &next, Logits::Last)];
            let mut rows = decoder.forward(&batch).unwrap();
            next = [best(&rows.remove(1))];
            logits = rows.remove(0);
        }
        let apart = worst(&logits, &case.logits[long]);
        assert!(apart < TOLERANCE, "{}, in pieces: off by {apart}", case.name);
        assert_eq!(answer, case.greedy[short][..answer.len()], "{}: the neighbour", case.name);
        let answer = greedy(&mut decoder, kv, logits, case.greedy[long].len());
        assert_eq!(answer, case.greedy[long], "{}", case.name);
    }
}

#[test]
fn rs_10_layers_that_are_streamed_change_no_bit_in_any_family() {
    let mut faults = Vec::new();
    for case in Case::all() {
        let result = streamed_as_resident(&case);
        report(&case.name, &result);
        if let Err(what) = result {
            // MXFP4 on a GPU: it is refused, with its name.
            if device() != DeviceId::Cpu && case.is_quantised() && what.contains("cannot be streamed to this device") {
                continue;
            }
            faults.push(format!("{}: {what}", case.name));
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// On devices that hold half of the layers each.
#[test]
fn rc_22_layers_on_two_devices_change_no_bit_in_any_family() {
    let place = DeviceOptions { device: device(), share: None, limit: None };
    let places = [place.clone(), place];
    let mut divided = BTreeSet::new();
    for case in Case::all() {
        let loaded = match load_over(case.folder(), &places, &DecoderLoadOptions::default(), &mut |_| {}) {
            Ok(loaded) => loaded,
            Err(error) => {
                // Layers that share keys and values stay together.
                let said = format!("{error}");
                assert!(said.contains("which would be on another device"), "{}: {said}", case.name);
                continue;
            }
        };
        if loaded.places().len() > 1 {
            divided.insert(case.family.clone());
        }
        let mut one = Sequences::over(loaded);
        let mut other = open(case.folder());
        for prompt in case.usable_prompts(other.info().context_length) {
            let [one, other] = [&mut one, &mut other].map(|decoder| {
                let kv = decoder.open(prompt.len() + 4).unwrap();
                let row = alone(decoder, kv, prompt, Logits::Last);
                let tokens = greedy(decoder, kv, row.clone(), 4);
                decoder.close(kv);
                (row, tokens)
            });
            assert!(one == other, "{}: {} apart", case.name, worst(&one.0, &other.0));
        }
    }
    assert!(divided.len() > 30 || std::env::var_os("MODEL_BOSS_FAMILY").is_some(), "{divided:?}");
}

fn streamed_as_resident(case: &Case) -> Result<(), String> {
    let residency = ResidencyOptions { mode: ResidencyMode::Stream, window: Some(1), block: Some(1) };
    let options = DecoderLoadOptions { residency, ..DecoderLoadOptions::default() };
    let streamed = load_with(case.folder(), &device(), &options, &mut |_| {}).map_err(|error| error.to_string())?;
    let mut streamed = Sequences::over(streamed);
    if streamed.monitor().is_none() {
        return Err("it is not streamed".to_owned());
    }
    let mut stays = open(case.folder());
    for prompt in case.usable_prompts(stays.info().context_length) {
        let answer = |decoder: &mut Sequences| -> Result<Vec<Vec<f32>>, String> {
            let kv = decoder.open(prompt.len() + 4).map_err(|error| error.to_string())?;
            let mut rows = Vec::new();
            let mut next = prompt.clone();
            for _ in 0..4 {
                let row =
                    decoder.forward(&[step(kv, &next, Logits::Last)]).map_err(|error| error.to_string())?.remove(0);
                next = vec![best(&row)];
                rows.push(row);
            }
            decoder.close(kv);
            Ok(rows)
        };
        if answer(&mut streamed)? != answer(&mut stays)? {
            return Err(format!("a prompt of {} tokens is answered in other bits", prompt.len()));
        }
    }
    Ok(())
}

/// Families whose experts can be pages: those that are stored as they are used.
const IN_PAGES: usize = 8;

#[test]
fn fa_6_experts_in_pages_change_no_bit_in_any_family() {
    let files = case_files("gguf").into_iter().map(|file| (Case::read(&file.with_extension("json")), file));
    let cases = Case::all().into_iter().map(|case| (case.folder().to_owned(), case));
    let cases = cases.chain(files.filter(|(case, _)| case.is_known()).map(|(case, file)| (file, case)));
    let residency = ResidencyOptions { mode: ResidencyMode::Stream, ..ResidencyOptions::default() };
    let options = DecoderLoadOptions { residency, ..DecoderLoadOptions::default() };
    let mut in_pages = std::collections::BTreeSet::new();
    for (model, case) in cases {
        // Experts that are not stored as they are used cannot be streamed.
        let Ok(paged) = load_with(&model, &DeviceId::Cpu, &options, &mut |_| {}) else { continue };
        let mut paged = Sequences::over(paged);
        if paged.monitor().is_none_or(|monitor| monitor.residency().experts.is_none()) {
            continue;
        }
        in_pages.insert(case.name.split('/').next().unwrap().to_owned());
        let mut stays = open(&model);
        let answers = |decoder: &mut Sequences| {
            let prompts: Vec<&Vec<u32>> = case.usable_prompts(decoder.info().context_length);
            let slots: Vec<_> = prompts.iter().map(|prompt| decoder.open(prompt.len()).unwrap()).collect();
            let steps = prompts.iter().zip(&slots).map(|(prompt, kv)| step(*kv, prompt, Logits::All));
            decoder.forward(&steps.collect::<Vec<_>>()).unwrap()
        };
        assert!(answers(&mut paged) == answers(&mut stays), "{}: {}", case.name, model.display());
    }
    assert!(in_pages.len() >= IN_PAGES, "{in_pages:?}");
}

/// The largest share that any answer of a file with eight bits is off by, and the one that half of the files keep to.
/// Heads of tiny models are narrow, so that rounding shows more than in real ones, most where it changes the choice of
/// an expert.
const EIGHT_BITS: (f32, f32) = (0.14, 0.05);

#[test]
fn fa_1_gguf_files_are_close_to_dense_models() {
    let (mut faults, mut shares) = (Vec::new(), Vec::new());
    for file in case_files("gguf") {
        let case = Case::read(&file.with_extension("json"));
        if !case.is_known() || !case.is_wanted() {
            continue;
        }
        let result = case.check_file(&file);
        report(&case.name, &result);
        match result {
            Ok(share) if share < EIGHT_BITS.0.max(rounded()) => shares.push(share),
            Ok(share) => faults.push(format!("{}: off by {share} of the largest logit", case.name)),
            Err(what) => faults.push(format!("{}: {what}", case.name)),
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    shares.sort_by(f32::total_cmp);
    // Of the files of some families alone, half says little.
    if let Some(middle) = shares.get(shares.len() / 2).filter(|_| shares.len() >= 20) {
        assert!(*middle < EIGHT_BITS.1, "half of the files are off by {middle} or more");
    }
}

/// Models that differ in GGUF, because the converter has no key for a property of theirs, or leaves it out.
const LESS_IN_GGUF: [&str; 18] = [
    // Rotations beside Mamba.
    "bamba/plain",
    "granitemoehybrid/dense-rope",
    // Windows.
    "mistral/window",
    "mixtral/window",
    "qwen2/window",
    "qwen3/layer-types",
    "qwen3/window",
    "smollm3/layers",
    "starcoder2/window",
    "gemma3/pattern",
    "gemma3/wrapper",
    // Factors of ropes, and routers of files from before a key existed.
    "deepseek_v2/groups-yarn",
    "deepseek_v3/groups-yarn",
    "deepseek_v3/no-q-lora",
    "olmo3/yarn",
    "llama/longrope",
    // The bound of queries, keys and values.
    "olmoe/clip",
    // Blocks, whose products round activations too.
    "gpt_oss/mxfp4",
];

/// The files in f32 are too large for the repository: `families.py --models DIR --gguf LLAMA_CPP` makes them.
#[test]
fn fa_1_gguf_files_in_f32_are_the_same_models() {
    let Some(folder) = std::env::var_os("MODEL_BOSS_FAMILY_FILES") else {
        eprintln!("skipped: MODEL_BOSS_FAMILY_FILES names no folder of files in f32");
        return;
    };
    let (mut faults, mut checked) = (Vec::new(), 0);
    for case in Case::all() {
        let file = std::path::Path::new(&folder).join(format!("{}.gguf", case.name));
        if !file.exists() || LESS_IN_GGUF.contains(&case.name.as_str()) {
            continue;
        }
        checked += 1;
        match case.check_file(&file) {
            Ok(share) if share < TOLERANCE => {}
            Ok(share) => faults.push(format!("{}: off by {share} of the largest logit", case.name)),
            Err(what) => faults.push(format!("{}: {what}", case.name)),
        }
    }
    assert!(checked > 0, "the folder has no files");
    assert!(faults.is_empty(), "{} of {checked}:\n{}", faults.len(), faults.join("\n"));
}

/// `docs/families.md` has a row for each family. `MODEL_BOSS_WRITE_DOCS=1` writes it; differences vary with the
/// processor and are not compared.
#[test]
fn fa_1_the_page_of_families_has_them_all() {
    let mut families: BTreeMap<String, FamilyRow> = BTreeMap::new();
    for case in Case::all() {
        let row = families.entry(case.family.clone()).or_default();
        row.classes.insert(case.architecture().to_owned());
        row.cases.push(case.short_name().to_owned());
        row.apart = row.apart.max(case.check_alone().unwrap_or(f32::INFINITY));
    }
    for file in case_files("gguf") {
        let case = Case::read(&file.with_extension("json"));
        let Some(row) = families.get_mut(&case.family).filter(|_| case.is_known()) else { continue };
        let model = GgufModel::open(&file).unwrap();
        let header = model.header().unwrap();
        row.gguf = header.need::<&str>("general.architecture").unwrap().to_owned();
        row.share = case.check_file(&file).ok();
    }
    let mut page = PAGE_HEAD.to_owned();
    for (family, row) in &families {
        let classes: Vec<String> = row.classes.iter().map(|class| format!("`{class}`")).collect();
        let gguf = if row.gguf.is_empty() { "–".to_owned() } else { format!("`{}`", row.gguf) };
        let share = row.share.map_or("–".to_owned(), |share| format!("{:.1} %", share * 100.0));
        let (classes, cases) = (classes.join(", "), row.cases.join(", "));
        page.push_str(&format!("| {family} | {classes} | {gguf} | {cases} | {:.0e} | {share} |\n", row.apart));
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/families.md");
    if std::env::var_os("MODEL_BOSS_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    // Without the two columns of differences.
    let names = |page: &str| -> Vec<String> {
        let cells = |line: &str| line.split(" | ").take(4).collect::<Vec<_>>().join(" | ");
        page.lines().map(|line| if line.starts_with("| ") { cells(line) } else { line.to_owned() }).collect()
    };
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(names(&written), names(&page), "MODEL_BOSS_WRITE_DOCS=1 writes docs/families.md");
}

/// A row of the page.
#[derive(Default)]
struct FamilyRow {
    classes: BTreeSet<String>,
    gguf: String,
    cases: Vec<String>,
    apart: f32,
    share: Option<f32>,
}

const PAGE_HEAD: &str = "\
# Families

The families of language models that the worker runs by itself, from safetensors and from GGUF. A test of `worker/candle`
makes this page: `MODEL_BOSS_WRITE_DOCS=1 cargo test -p model-boss-candle --test families`.

Each case is a tiny model of random weights in f32 with the answers of `transformers` 5.23. Four prompts of unequal length run
alone, together, and in pieces beside a neighbour that decodes; a row's logits have the same bits in each company. Greedy tokens
are those of the reference, which computes the whole text again for each token. *Largest difference* is that of any logit from the
reference; logits are of the order of 10. A share in its place is that of the largest logit, for a case whose products round
activations to eight bits. *q8_0* is the largest difference of the same model in GGUF from llama.cpp's converter, as a share of
the largest logit. How the cases are made: `scripts/reference/families.py`.

Encoders are in [embeddings.md](embeddings.md), models that speak in [speech.md](speech.md), and Whisper in
[transcription.md](transcription.md). Models that see are in [images.md](images.md), with cases of their own: Qwen2.5-VL, Qwen3-VL,
Gemma 3 with its tower, Idefics3, SmolVLM and LLaVA.

| family | classes of `config.json` | GGUF | cases | largest difference | q8_0 |
|---|---|---|---|---|---|
";
