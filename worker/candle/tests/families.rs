//! Families of models compared with `transformers`, on tiny random ones under `families/` from
//! `scripts/reference/families.py`. A case has a configuration, the shapes of its tensors, prompts and answers; weights
//! are made here by the rule that the script has.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

mod family_cases;

use family_cases::{Case, alone, best, case_files, greedy, open, step, worst};
use model_boss_engine::Logits;

/// The tolerance for models stored in f32: the largest difference of a logit from the reference.
const TOLERANCE: f32 = 1e-3;

/// The tolerance for models whose products round activations to eight bits, as a share of the largest logit. Heads and
/// groups of tiny models are narrow, so that rounding shows more than in real ones.
const ROUNDED: f32 = 0.08;

#[test]
fn fa_1_every_family_answers_as_transformers_does() {
    let mut faults = Vec::new();
    for case in Case::all() {
        match case.check_alone() {
            Ok(apart) if apart < if case.is_quantised() { ROUNDED } else { TOLERANCE } => {}
            Ok(apart) => faults.push(format!("{}: off by {apart}", case.name)),
            Err(what) => faults.push(format!("{}: {what}", case.name)),
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
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
            assert_eq!(alone(&mut decoder, kv, prompt, Logits::Last), together, "{}", case.name);
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

/// The largest share that any answer of a file with eight bits is off by, and the one that half of the files keep to.
/// Heads of tiny models are narrow, so that rounding shows more than in real ones, most where it changes the choice of
/// an expert.
const EIGHT_BITS: (f32, f32) = (0.14, 0.04);

#[test]
fn fa_1_gguf_files_are_close_to_dense_models() {
    let (mut faults, mut shares) = (Vec::new(), Vec::new());
    for file in case_files("gguf") {
        let case = Case::read(&file.with_extension("json"));
        if !case.is_known() || !case.is_wanted() {
            continue;
        }
        match case.check_file(&file) {
            Ok(share) if share < EIGHT_BITS.0 => shares.push(share),
            Ok(share) => faults.push(format!("{}: off by {share} of the largest logit", case.name)),
            Err(what) => faults.push(format!("{}: {what}", case.name)),
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    shares.sort_by(f32::total_cmp);
    let middle = shares[shares.len() / 2];
    // Of the files of some families alone, half says little.
    assert!(shares.len() < 20 || middle < EIGHT_BITS.1, "half of the files are off by {middle} or more");
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
