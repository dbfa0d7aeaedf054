//! Solvers beside those of `diffusers`, from `scripts/reference/schedulers.py`.

use model_boss_engine::TorchGenerator;
use serde::Deserialize;
use serde_json::{Value, json};

use super::flow_match::FlowSigmas;
use super::scheduler_class::SchedulerClass;
use super::{FolderRules, SchedulerSpec};

#[derive(Deserialize)]
struct Cases {
    cases: Vec<SolverCase>,
}

#[derive(Deserialize)]
struct SolverCase {
    case: String,
    config: Value,
    wanted: Option<String>,
    rules: bool,
    steps: usize,
    start: usize,
    tokens: Option<usize>,
    times: Vec<f32>,
    scale: f32,
    inputs: Vec<f32>,
    noised: Vec<f32>,
    samples: Vec<Vec<f32>>,
}

fn near(what: &str, ours: &[f32], theirs: &[f32]) {
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert!((ours - theirs).abs() <= 2e-4 * theirs.abs().max(1.0), "{what}: {ours} and not {theirs}");
    }
}

#[test]
fn rc_25_solvers_do_what_those_of_diffusers_do() {
    let Cases { cases } = serde_json::from_str(include_str!("../../../tests/pictures/schedulers.json")).unwrap();
    assert!(cases.len() >= 60);
    for case in cases {
        let name = &case.case;
        let rules = if case.rules { FolderRules::StableDiffusion } else { FolderRules::AsWritten };
        let spec = SchedulerSpec::from_config(&case.config, rules).unwrap();
        let sigmas = case.tokens.map_or(FlowSigmas::OfTraining, |tokens| FlowSigmas::OfSteps { tokens });
        let mut solver = spec.solver(case.wanted.as_deref(), case.steps, sigmas).unwrap();
        let calls = solver.times().len();
        assert_eq!(calls - case.start, case.times.len(), "{name}");
        near(&format!("{name}: times"), &solver.times()[case.start..], &case.times);
        near(&format!("{name}: scale"), &[solver.initial_scale()], &[case.scale]);
        let (mut drawn, mut own) = (TorchGenerator::seeded(11), TorchGenerator::seeded(5));
        let (picture, noise) = (drawn.normals(16), drawn.normals(16));
        let noised = solver.noised(case.start, &picture, &noise);
        near(&format!("{name}: noised"), &noised, &case.noised);
        let mut sample =
            if case.start > 0 { noised } else { noise.iter().map(|noise| noise * solver.initial_scale()).collect() };
        for (call, theirs) in (case.start..calls).zip(&case.samples) {
            near(&format!("{name}: input"), &[solver.input_scale(call)], &case.inputs[call - case.start..][..1]);
            solver.step(call, &drawn.normals(16), &mut sample, &mut || own.normals(16));
            near(&format!("{name}: call {call}"), &sample, theirs);
        }
    }
}

#[test]
fn rc_25_settings_that_no_solver_has_are_refused_by_name() {
    let refused = |config: Value, wanted: Option<&str>, steps: usize, word: &str| {
        let spec = SchedulerSpec::from_config(&config, FolderRules::AsWritten);
        let error = match spec {
            Ok(spec) => match spec.solver(wanted, steps, FlowSigmas::OfTraining) {
                Ok(_) => panic!("{config} was taken"),
                Err(error) => error,
            },
            Err(error) => error,
        };
        assert!(error.contains(word), "{error}");
    };
    let of =
        |class: &str, field: &str, value: Value| json!({"_class_name": class, "skip_prk_steps": true, field: value});
    refused(json!({}), None, 4, "''");
    refused(of("HeunDiscreteScheduler", "a", 1.into()), None, 4, "HeunDiscreteScheduler");
    refused(of("EulerDiscreteScheduler", "beta_schedule", "odd".into()), None, 4, "odd");
    refused(of("EulerDiscreteScheduler", "use_beta_sigmas", true.into()), None, 4, "use_beta_sigmas");
    refused(of("DDIMScheduler", "num_train_timesteps", 0.into()), None, 4, "num_train_timesteps");
    refused(of("DDIMScheduler", "trained_betas", json!([0.5])), None, 4, "1 levels");
    refused(of("DDIMScheduler", "trained_betas", json!([0.5, 2.0])), None, 4, "between 0 and 1");
    refused(of("DPMSolverMultistepScheduler", "algorithm_type", "sde-dpmsolver++".into()), None, 4, "sde-dpmsolver++");
    refused(of("UniPCMultistepScheduler", "solver_order", 7.into()), None, 4, "solver_order is 7");
    refused(of("PNDMScheduler", "a", 1.into()), Some("magic"), 4, "'magic'");
    refused(of("PNDMScheduler", "a", 1.into()), Some("PNDMScheduler+karras"), 4, "not known");
    refused(of("PNDMScheduler", "a", 1.into()), Some("flow_match_euler"), 4, "does not fit");
    refused(of("PNDMScheduler", "a", 1.into()), None, 0, "0 steps");
    refused(of("PNDMScheduler", "a", 1.into()), None, 1001, "1001 steps");
}

#[test]
fn rc_25_a_request_names_a_scheduler_by_its_class_or_a_short_name_with_karras_sigmas_behind_it() {
    for (name, expected) in [
        ("DPMSolverMultistepScheduler", Some((SchedulerClass::DpmSolverMultistep, false))),
        ("DPMSolverMultistepScheduler+karras", Some((SchedulerClass::DpmSolverMultistep, true))),
        ("EulerDiscreteScheduler+Karras", Some((SchedulerClass::Euler, true))),
        ("unipc+karras", Some((SchedulerClass::UniPc, true))),
        ("DPM++ 2M Karras", Some((SchedulerClass::DpmSolverMultistep, true))),
        ("Euler-a", Some((SchedulerClass::EulerAncestral, false))),
        ("ddim+karras", None),
        ("+karras", None),
        ("\u{e4}+karras", None),
    ] {
        assert_eq!(SchedulerClass::of_request(name), expected, "{name}");
    }
}
