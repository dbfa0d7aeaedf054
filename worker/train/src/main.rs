//! `model-boss-train`: trains the guide model, measures it, and prints its answer to a question.

mod terminal;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use model_boss_engine::Sequences;
use model_boss_protocol::DeviceId;
use model_boss_train::batch::Curriculum;
use model_boss_train::corpus::{self, Family};
use model_boss_train::curve::Point;
use model_boss_train::evaluate::{self, HeldOutReport};
use model_boss_train::model::{Architecture, GuideModel};
use model_boss_train::optimizer::OptimizerSettings;
use model_boss_train::plan::TrainPlan;
use model_boss_train::text::GuideText;
use model_boss_train::{curve, package, trainer};

use terminal::{print, say};

/// Trains and measures the guide model of model-boss.
#[derive(Parser)]
#[command(name = "model-boss-train", version)]
struct TrainCli {
    #[command(subcommand)]
    command: TrainCommand,
}

#[derive(Subcommand)]
enum TrainCommand {
    /// Train on a corpus and write a model package. A stopped run goes on where it was.
    Train(Train),
    /// Answer held-out questions by greedy decoding and print the share answered correctly.
    Eval {
        /// The model package.
        package: PathBuf,
        /// The held-out questions.
        #[arg(long, default_value = "worker/train/corpus/heldout.txt")]
        held_out: PathBuf,
        /// Print every question and answer, not only the wrong ones.
        #[arg(long)]
        all: bool,
    },
    /// Ask one question.
    Ask {
        /// The model package.
        package: PathBuf,
        /// The question.
        question: String,
    },
    /// Count what a corpus holds.
    Corpus {
        /// The folder.
        #[arg(default_value = "worker/train/corpus")]
        folder: PathBuf,
    },
}

#[derive(Args)]
struct Train {
    /// The folder of the corpus.
    #[arg(long, default_value = "worker/train/corpus")]
    corpus: PathBuf,
    /// The package to write.
    #[arg(long, default_value = "manifests/guide")]
    package: PathBuf,
    /// Decides the first weights, the order and the wordings.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Steps in all.
    #[arg(long, default_value_t = 2_200)]
    steps: usize,
    /// Rows of a batch.
    #[arg(long, default_value_t = 8)]
    rows: usize,
    /// Tokens of a row.
    #[arg(long, default_value_t = 192)]
    time: usize,
    /// Largest vocabulary.
    #[arg(long, default_value_t = 2_048)]
    vocab: usize,
    /// Highest learning rate.
    #[arg(long, default_value_t = OptimizerSettings::default().peak_rate)]
    rate: f64,
    /// Parts of a batch worked on side by side.
    #[arg(long, default_value_t = 4)]
    parts: usize,
    /// Where a stopped run goes on from.
    #[arg(long, default_value = "target/guide.checkpoint.safetensors")]
    checkpoint: PathBuf,
    /// Seconds between checkpoints.
    #[arg(long, default_value_t = 60)]
    checkpoint_every: u64,
    /// Also write a package at every checkpoint, to look at while training goes on.
    #[arg(long)]
    preview: Option<PathBuf>,
}

fn main() -> ExitCode {
    let outcome = match TrainCli::parse().command {
        TrainCommand::Train(args) => train(&args),
        TrainCommand::Eval { package, held_out, all } => eval(&package, &held_out, all),
        TrainCommand::Ask { package, question } => ask(&package, &question),
        TrainCommand::Corpus { folder } => count(&folder),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("error: {error}");
            let mut source = error.source();
            while let Some(inner) = source {
                text.push_str(&format!(": {inner}"));
                source = inner.source();
            }
            say(text);
            ExitCode::FAILURE
        }
    }
}

type TrainOutcome<T = ()> = Result<T, Box<dyn Error>>;

fn train(args: &Train) -> TrainOutcome {
    let families = corpus::read_families(&args.corpus)?;
    let held_out = corpus::read_held_out(&args.corpus.join("heldout.txt"))?;
    let text = GuideText::train(&families, args.vocab)?;
    let plan = TrainPlan {
        seed: args.seed,
        steps: args.steps,
        rows: args.rows,
        time: args.time,
        parts: args.parts,
        settings: OptimizerSettings { peak_rate: args.rate, ..OptimizerSettings::default() },
        checkpoint: args.checkpoint.clone(),
        checkpoint_every: Duration::from_secs(args.checkpoint_every),
    };
    if let Some(folder) = args.checkpoint.parent() {
        std::fs::create_dir_all(folder)?;
    }
    describe(&families, &text, &plan)?;
    let trained = trainer::train(&plan, &families, &text, Architecture::guide(text.vocab_size()), |model, curve| {
        if let Some(folder) = &args.preview
            && let Err(error) = write(folder, model, &text, curve)
        {
            say(format_args!("the preview was not written: {error}"));
        }
    })?;
    write(&args.package, &trained.model, &text, &trained.curve)?;
    std::fs::remove_file(&args.checkpoint)?;
    let loss = trainer::recent(&trained.curve);
    print(format_args!("loss {loss:.4}, {} parameters", trained.model.parameter_count()));
    let (mut decoder, text) = open(&args.package)?;
    print_report(&evaluate::evaluate(&mut decoder, &text, &held_out)?, false);
    Ok(())
}

fn write(folder: &Path, model: &GuideModel, text: &GuideText, points: &[Point]) -> TrainOutcome {
    package::write(folder, model, text)?;
    trainer::write_csv(points, &folder.join("loss.csv"))?;
    std::fs::write(folder.join("loss.svg"), curve::svg(points))?;
    Ok(())
}

fn describe(families: &[Family], text: &GuideText, plan: &TrainPlan) -> TrainOutcome {
    let batches = Curriculum::new(families, text, plan.seed).epoch(0, plan.rows, plan.time)?;
    let tokens: usize = batches.iter().flat_map(|b| &b.tokens).filter(|&&t| t != text.padding).count();
    let targets: usize = batches.iter().map(|b| b.targets.len()).sum();
    print(format_args!(
        "{} families, {} questions; {} tokens in the vocabulary; an epoch has {} steps, {tokens} tokens, {targets} of answers",
        families.len(),
        families.iter().map(|f| f.questions.len()).sum::<usize>(),
        text.vocab_size(),
        batches.len(),
    ));
    Ok(())
}

/// Opens a package as it will be served, with the worker's decoder.
fn open(folder: &Path) -> TrainOutcome<(Sequences, GuideText)> {
    let decoder = Sequences::over(model_boss_candle::load(folder, &DeviceId::Cpu, None, &mut |_| ())?);
    Ok((decoder, GuideText::open(&folder.join("tokenizer.json"))?))
}

fn eval(folder: &Path, held_out: &Path, all: bool) -> TrainOutcome {
    let (mut decoder, text) = open(folder)?;
    let questions = corpus::read_held_out(held_out)?;
    print_report(&evaluate::evaluate(&mut decoder, &text, &questions)?, all);
    Ok(())
}

fn print_report(report: &HeldOutReport, all: bool) {
    for (question, answer, right) in &report.answers {
        if all || !right {
            let mark = if *right { "right" } else { "wrong" };
            print(format_args!("{mark}: {}\n       {answer}", question.question));
        }
    }
    let share = report.share() * 100.0;
    print(format_args!(
        "{} of {} held-out questions answered correctly: {share:.1} %",
        report.correct(),
        report.answers.len()
    ));
}

fn ask(folder: &Path, question: &str) -> TrainOutcome {
    let (mut decoder, text) = open(folder)?;
    for answer in evaluate::answer(&mut decoder, &text, &[question])? {
        print(answer);
    }
    Ok(())
}

fn count(folder: &Path) -> TrainOutcome {
    let families = corpus::read_families(folder)?;
    let wordings: usize = families.iter().flat_map(|f| &f.questions).map(|q| corpus::all_wordings(q).len()).sum();
    let questions: usize = families.iter().map(|f| f.questions.len()).sum();
    print(format_args!("{} families, {questions} questions, {wordings} wordings", families.len()));
    Ok(())
}
