//! The report on streamed layers: decodes some tokens and shows how the time was spent, as a table and as a picture.

mod picture;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use model_boss_engine::residency::{Adapted, ExpertTotals, LayerReport, Monitor, ResidencySummary, StreamTotals};
use model_boss_engine::{DecoderError, KvSlot, Logits, SequenceStep, Sequences};
use model_boss_protocol::{DeviceId, SandboxMode, WorkerExit};
use serde::Serialize;

use crate::args::{LayerFlags, Serve};
use crate::backend::LoadDecoder;
use crate::by_hand;
use crate::failure::LoadFailure;
use crate::terminal::print;

/// `residency`'s command line.
#[derive(Debug, clap::Args)]
pub(crate) struct ResidencyReportArgs {
    /// A GGUF file, or a folder with a model
    model: PathBuf,
    /// Where to run; several devices share the layers: cuda:0,cuda:1
    #[arg(long, default_value = "cpu", value_delimiter = ',')]
    device: Vec<DeviceId>,
    #[command(flatten)]
    layers: LayerFlags,
    /// Sequences that decode together
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// Tokens of each sequence's prompt
    #[arg(long, default_value_t = 8)]
    prompt: usize,
    /// Tokens that each sequence decodes
    #[arg(long, default_value_t = 8)]
    tokens: usize,
    /// Tokens that each sequence decodes before anything counts, if layers are streamed: the look-ahead is chosen by
    /// what was measured meanwhile
    #[arg(long, default_value_t = 24)]
    settle: usize,
    /// Write a picture of the last step: when each layer was read, placed, waited for, computed with
    #[arg(long, value_name = "FILE.svg")]
    timeline: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// The measurements. Rates count decoding alone; the prompt and a first token come before.
#[derive(Debug, Serialize)]
struct DecodeReport {
    streams: usize,
    tokens: usize,
    /// The speed of all sequences together.
    tokens_per_second: f64,
    seconds_per_step: f64,
    /// None where all layers stay.
    streaming: Option<StreamingReport>,
}

#[derive(Debug, Serialize)]
struct StreamingReport {
    plan: ResidencySummary,
    /// The changes that measured steps have led to since the load.
    adapted: Adapted,
    totals: StreamTotals,
    /// The counts of expert pages; none where whole layers are streamed.
    experts: Option<ExpertTotals>,
    /// The bytes per second of the steps' time.
    bytes_per_second: f64,
    /// The share of the store's speed at load time.
    store_share: f64,
    overlap: f64,
    /// The layers of the last step.
    layers: Vec<LayerReport>,
}

/// Loads the model, decodes, reports.
pub(crate) fn run(asked: &ResidencyReportArgs, load: LoadDecoder) -> Result<(), LoadFailure> {
    let streams = asked.streams.max(1);
    let serve = Serve {
        model: None,
        port: 0,
        device: asked.device.clone(),
        context_length: Some((asked.prompt.max(1) + asked.settle + asked.tokens + 1) as u64),
        max_concurrent: u32::try_from(streams).ok(),
        sandbox: SandboxMode::Off,
        layers: asked.layers.clone(),
    };
    let spec = by_hand::spec(&serve, &asked.model).map_err(|error| LoadFailure::new(WorkerExit::BadSpec, &error))?;
    let mut decoder = Sequences::over(load(&spec, &mut |_| ())?);
    let report = measure(asked, &mut decoder).map_err(LoadFailure::of_step)?;
    if let (Some(path), Some(monitor)) = (&asked.timeline, decoder.monitor()) {
        let picture = picture::of(&monitor.last());
        std::fs::write(path, picture).map_err(|error| {
            LoadFailure::message(WorkerExit::BadSpec, format!("cannot write {}: {error}", path.display()))
        })?;
    }
    if asked.json {
        // Numbers and words always have a spelling in JSON.
        print(serde_json::to_string(&report).unwrap_or_default());
    } else {
        print(table(&report).trim_end());
    }
    Ok(())
}

fn measure(asked: &ResidencyReportArgs, decoder: &mut Sequences) -> Result<DecodeReport, DecoderError> {
    let vocabulary = u32::try_from(decoder.info().vocab_size).unwrap_or(u32::MAX).max(1);
    let token = |i: usize| (i as u32).wrapping_mul(7_919).wrapping_add(13) % vocabulary;
    let streams = asked.streams.max(1);
    let prompt: Vec<u32> = (0..asked.prompt.max(1)).map(token).collect();
    let slots = (0..streams)
        .map(|_| decoder.open(prompt.len() + asked.settle + asked.tokens + 1))
        .collect::<Result<Vec<KvSlot>, DecoderError>>()?;
    let streams_layers = decoder.monitor().is_some();
    let mut together = |tokens: &[u32]| -> Result<(), DecoderError> {
        let step = |kv: &KvSlot| SequenceStep { kv: *kv, tokens, logits: Logits::Last };
        decoder.forward(&slots.iter().map(step).collect::<Vec<_>>()).map(|_| ())
    };
    together(&prompt)?;
    // The first of its kind warms caches up.
    let settle = if streams_layers { asked.settle } else { 0 };
    for round in 0..=settle {
        together(&[token(prompt.len() + round)])?;
    }
    let before = decoder.monitor().map(|monitor| (monitor.totals(), monitor.experts()));
    let begun = Instant::now();
    for round in 0..asked.tokens {
        // Tokens that were not used before: the experts of those would still be in memory.
        let tokens = [token(prompt.len() + settle + 1 + round)];
        let step = |kv: &KvSlot| SequenceStep { kv: *kv, tokens: &tokens, logits: Logits::Last };
        decoder.forward(&slots.iter().map(step).collect::<Vec<_>>())?;
    }
    let seconds = begun.elapsed().as_secs_f64().max(1e-9);
    let streaming = decoder.monitor().zip(before).map(|(monitor, before)| StreamingReport::since(&monitor, &before));
    slots.into_iter().for_each(|kv| decoder.close(kv));
    Ok(DecodeReport {
        streams,
        tokens: asked.tokens,
        tokens_per_second: (streams * asked.tokens) as f64 / seconds,
        seconds_per_step: seconds / asked.tokens.max(1) as f64,
        streaming,
    })
}

impl StreamingReport {
    fn since(monitor: &Monitor, (before, experts): &(StreamTotals, Option<ExpertTotals>)) -> Self {
        let totals = monitor.totals().since(before);
        let experts = monitor.experts().zip(experts.as_ref()).map(|(now, before)| now.since(before));
        let plan = monitor.residency().clone();
        let rate = totals.bandwidth();
        Self {
            bytes_per_second: rate,
            store_share: if plan.store_bytes_per_second > 0.0 { rate / plan.store_bytes_per_second } else { 0.0 },
            overlap: totals.overlap(),
            layers: monitor.layers(),
            adapted: monitor.adapted(),
            plan,
            totals,
            experts,
        }
    }
}

fn table(report: &DecodeReport) -> String {
    let mut text = String::new();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} streams, {} tokens each: {:.3} tokens/s, {:.0} ms a step",
        report.streams,
        report.tokens,
        report.tokens_per_second,
        1e3 * report.seconds_per_step
    );
    let Some(streaming) = &report.streaming else {
        let _ = writeln!(text, "all layers stay on the device");
        return text;
    };
    let plan = &streaming.plan;
    if let (Some(memory), Some(experts)) = (&plan.experts, &streaming.experts) {
        let _ = writeln!(
            text,
            "{} experts in pages ({:.0} MiB), {:.0} MiB of them in memory; {:.1} % of {} uses found theirs there ({:.1} % by a \
             guess), {:.1} % while it was read ahead; {} reads ({} of them by a guess), {:.1} MiB a step",
            memory.pages,
            mib(memory.bytes),
            mib(memory.memory),
            100.0 * experts.hit_share(),
            experts.uses,
            100.0 * experts.foreseen as f64 / experts.uses.max(1) as f64,
            100.0 * experts.late as f64 / experts.uses.max(1) as f64,
            experts.reads,
            experts.reads_ahead,
            mib(experts.bytes) / streaming.totals.steps.max(1) as f64,
        );
    }
    let _ = writeln!(
        text,
        "{} layers stay ({:.0} MiB), {} come in {} blocks ({:.0} MiB a step, {:.0} of them rearranged) through {} slots of \
         {:.0} MiB; store: {}",
        plan.resident_layers,
        mib(plan.resident_bytes),
        plan.streamed_layers,
        plan.blocks,
        mib(plan.streamed_bytes),
        mib(plan.rearranged_bytes),
        plan.slots,
        mib(plan.slot_bytes),
        plan.store
    );
    let _ = writeln!(
        text,
        "{:.2} GB/s, {:.2} of the {:.2} GB/s measured at load; overlap {:.3}; predicted {:.0} ms a step of one stream",
        streaming.bytes_per_second / 1e9,
        streaming.store_share,
        plan.store_bytes_per_second / 1e9,
        streaming.overlap,
        1e3 * plan.predicted_step_seconds
    );
    let (adapted, totals) = (&streaming.adapted, &streaming.totals);
    let _ = writeln!(
        text,
        "looks {} blocks ahead ({} as planned, changed {} times), {} slots hold blocks that stay for now; {:.0} ms a step are \
         expected by what was measured",
        adapted.look_ahead,
        plan.look_ahead,
        adapted.changes,
        plan.slots.saturating_sub(adapted.look_ahead + 1),
        1e3 * adapted.expected_step_seconds,
    );
    let share = |seconds: f64| 100.0 * seconds / totals.wall_seconds.max(1e-9);
    let _ = writeln!(
        text,
        "of the steps' time: layers compute {:.1} %, embedding and head {:.1} %, waiting {:.1} %; beside it reading {:.1} %, \
         placing {:.1} %",
        share(totals.compute_seconds),
        share(totals.ends_seconds),
        share(totals.stall_seconds),
        share(totals.read_seconds),
        share(totals.place_seconds)
    );
    let _ = writeln!(text, "\nlayer      MiB   h2d ms  compute ms  stall ms");
    for layer in &streaming.layers {
        let _ = writeln!(
            text,
            "{:>5} {:>8.1} {:>8.1} {:>11.1} {:>9.1}",
            layer.layer,
            mib(layer.bytes),
            layer.h2d_ms,
            layer.compute_ms,
            layer.stall_ms
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use model_boss_engine::fake::{FakeDecoder, Script};
    use model_boss_engine::residency::{Compute, Copy, StepTimeline, TimeSpan};

    use super::*;

    fn asked() -> ResidencyReportArgs {
        ResidencyReportArgs {
            model: "m".into(),
            device: vec![DeviceId::Cpu],
            layers: LayerFlags::default(),
            streams: 3,
            prompt: 2,
            tokens: 4,
            settle: 3,
            timeline: None,
            json: false,
        }
    }

    #[test]
    fn a_model_that_stays_is_said_to_stay() {
        let mut decoder = Sequences::over(Box::new(FakeDecoder::new(Script::Hash(8), 64)));
        let report = measure(&asked(), &mut decoder).unwrap();
        assert!(report.tokens_per_second > 0.0 && report.streaming.is_none());
        assert!(table(&report).contains("3 streams") && table(&report).contains("stay on the device"));
    }

    #[test]
    fn every_layer_has_a_row_and_a_bar() {
        let span = |start: f64, end: f64| TimeSpan { start, end };
        let step = StepTimeline {
            copies: vec![Copy { layers: vec![1], bytes: 3 << 20, read: span(-0.5, 0.25), place: span(0.25, 0.5) }],
            layers: vec![
                Compute { layer: 0, stall: span(0.0, 0.0), compute: span(0.0, 0.375) },
                Compute { layer: 1, stall: span(0.375, 0.5), compute: span(0.5, 1.0) },
            ],
            wall: 1.25,
            gap: 0.0,
        };
        let totals = step.totals();
        let layers = step.layers();
        let plan = ResidencySummary { store_bytes_per_second: 6e6, ..ResidencySummary::default() };
        let adapted = Adapted::default();
        let streaming = StreamingReport {
            plan,
            adapted,
            totals,
            experts: None,
            bytes_per_second: 3e6,
            store_share: 0.5,
            overlap: 0.875,
            layers,
        };
        let report = DecodeReport {
            streams: 1,
            tokens: 1,
            tokens_per_second: 1.0,
            seconds_per_step: 1.0,
            streaming: Some(streaming),
        };
        let text = table(&report);
        assert!(
            text.lines().any(|line| line.split_whitespace().eq(["1", "3.0", "1000.0", "500.0", "125.0"])),
            "{text}"
        );
        assert!(text.contains("layers compute 70.0 %, embedding and head 20.0 %, waiting 10.0 %"), "{text}");
        let picture = picture::of(&step);
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
        for kind in ["read", "place", "stall", "compute"] {
            assert!(picture.contains(&format!("class=\"{kind}\"")), "{kind}");
        }
    }
}
