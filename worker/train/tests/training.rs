//! Whole runs on a corpus of two families: the loss falls, runs are reproducible, and a stopped run continues.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

use std::time::Duration;

use model_boss_engine::Sequences;
use model_boss_protocol::DeviceId;
use model_boss_train::corpus::{Family, HeldOut};
use model_boss_train::evaluate;
use model_boss_train::model::{Architecture, GuideModel};
use model_boss_train::optimizer::OptimizerSettings;
use model_boss_train::package;
use model_boss_train::plan::TrainPlan;
use model_boss_train::text::GuideText;
use model_boss_train::trainer::{self, TrainError, Trained};

fn families() -> Vec<Family> {
    let family = |name: &str, question: &str, answer: &str| Family {
        name: name.into(),
        after: None,
        questions: vec![question.into()],
        answer: answer.into(),
    };
    vec![family("port", "which {port|number}", "Port 8210."), family("hello", "{hi|hello} there", "Good day to you.")]
}

fn small(vocab_size: usize) -> Architecture {
    Architecture { hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, ..Architecture::guide(vocab_size) }
}

fn architecture(text: &GuideText) -> Architecture {
    Architecture { num_attention_heads: 4, num_key_value_heads: 2, ..small(text.vocab_size()) }
}

fn plan(folder: &std::path::Path, steps: usize) -> TrainPlan {
    TrainPlan {
        seed: 5,
        steps,
        rows: 4,
        time: 64,
        parts: 2,
        settings: OptimizerSettings { peak_rate: 1e-2, warm_up: 5, ..OptimizerSettings::default() },
        checkpoint: folder.join("checkpoint.safetensors"),
        checkpoint_every: Duration::from_secs(3_600),
    }
}

fn run(plan: &TrainPlan, text: &GuideText) -> Result<Trained, TrainError> {
    trainer::train(plan, &families(), text, architecture(text), |_, _| ())
}

fn weights(model: &GuideModel) -> Vec<Vec<f32>> {
    model.parameters.values().map(|var| var.flatten_all().unwrap().to_vec1().unwrap()).collect()
}

#[test]
fn a_few_steps_lower_the_loss_and_the_package_answers() {
    let folder = tempfile::tempdir().unwrap();
    let text = GuideText::train(&families(), 320).unwrap();
    let trained = run(&plan(folder.path(), 80), &text).unwrap();
    let (first, last) = (trained.curve[0].loss, trainer::recent(&trained.curve));
    assert!(last < 0.2 * first, "{first} became {last}");

    package::write(folder.path(), &trained.model, &text).unwrap();
    let mut decoder =
        Sequences::over(model_boss_candle::load(folder.path(), &DeviceId::Cpu, None, &mut |_| ()).unwrap());
    let question = HeldOut { question: "Which port?".into(), must: vec![vec!["8210".into()]] };
    let report = evaluate::evaluate(&mut decoder, &text, &[question]).unwrap();
    assert_eq!(report.correct(), 1, "{}", report.answers[0].1);
}

#[test]
fn the_same_seed_gives_the_same_weights_also_after_a_stop() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let text = GuideText::train(&families(), 320).unwrap();
    let straight = run(&plan(folders[0].path(), 12), &text).unwrap();

    // The run is stopped in the middle: every step leaves a checkpoint, and the fifth one stops the run.
    let mut stopping = plan(folders[1].path(), 12);
    stopping.checkpoint_every = Duration::ZERO;
    let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        trainer::train(&stopping, &families(), &text, architecture(&text), |_, curve| {
            assert!(curve.len() < 5, "the stop this test wants");
        })
    }));
    assert!(stopped.is_err());
    let resumed = run(&stopping, &text).unwrap();
    assert_eq!(weights(&straight.model), weights(&resumed.model));
    // JSON, in which the curve was stored, may change a last digit.
    for (a, b) in straight.curve.iter().zip(&resumed.curve) {
        assert!(a.step == b.step && (a.loss - b.loss).abs() < 1e-9, "{a:?} and {b:?}");
    }
    assert_eq!(resumed.curve.len(), 12);

    let other = plan(folders[1].path(), 13);
    assert!(matches!(run(&other, &text), Err(TrainError::Checkpoint(_))), "another run's checkpoint is refused");
}
