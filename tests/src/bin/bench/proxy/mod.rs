//! `scripts/bench proxy`: the latency that a gateway adds to a model's answer. The coordinator and other gateways take
//! turns in every round, in front of the same backend. The bare round trip is the lower limit.

pub(crate) mod backend;
mod gateway;
mod load;
pub(crate) mod report;
mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use model_boss_tests::Sandbox;

use gateway::{DIRECT, Found, Gateway, NGINX, OURS, VLLM_ROUTER, pin_load};
use report::{Figure, Report};

/// The connections of the load whose CPU time is counted.
const CONNECTIONS: usize = 32;
/// The number of answers timed one by one.
const ANSWERS: usize = 4_000;
/// The number of first tokens timed one by one.
const FIRST_TOKENS: usize = 2_000;
/// The CPU of all processes but the gateway, and of the gateway too when all share one.
const FIRST_CPU: usize = 0;
/// The gateway's own CPU.
const SECOND_CPU: usize = 1;
/// The range of times that shows a delayed acknowledgement (Nagle's algorithm against the other side's timer).
const FORTY_MS: std::ops::Range<Duration> = Duration::from_millis(35)..Duration::from_millis(45);

/// The options of the command line.
struct Options {
    rounds: usize,
    /// The length of each load whose CPU time is counted.
    span: Duration,
    streams: u32,
    /// The length of the streams.
    stream_span: Duration,
    json: Option<PathBuf>,
    only: Vec<String>,
}

impl Options {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            rounds: 5,
            span: Duration::from_secs(3),
            streams: 1024,
            stream_span: Duration::from_secs(6),
            json: None,
            only: Vec::new(),
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            let number = |text: String| text.parse::<u32>().map_err(|_| format!("'{text}' is no whole number"));
            match word.as_str() {
                "--rounds" => options.rounds = number(value()?)? as usize,
                "--seconds" => options.span = Duration::from_secs(number(value()?)?.into()),
                "--streams" => options.streams = number(value()?)?,
                "--stream-seconds" => options.stream_span = Duration::from_secs(number(value()?)?.into()),
                "--json" => options.json = Some(value()?.into()),
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                _ => {
                    return Err(format!(
                        "'{word}' is none of --rounds N, --seconds N, --streams N, --stream-seconds N, --json FILE, \
                         --only {OURS},{NGINX},{VLLM_ROUTER}"
                    ));
                }
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

/// Runs the measurement; `words` are the arguments after `proxy`.
pub(crate) async fn run(words: impl Iterator<Item = String>, processor: String) -> ExitCode {
    let options = match Options::read(words) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("bench proxy: {error}");
            return ExitCode::from(2);
        }
    };
    let mut report = Report::new(BTreeMap::from([
        ("machine", processor),
        ("rounds", format!("{}, interleaved", options.rounds)),
        ("streams", format!("{} of 50 frames/s for {} s", options.streams, options.stream_span.as_secs())),
    ]));
    let sandbox = Sandbox::new();
    let mut gateways = vec![Gateway::direct().await];
    if options.wants(OURS) {
        gateways.push(Gateway::ours(&sandbox).await);
    }
    if options.wants(NGINX) {
        keep(&mut gateways, &mut report, NGINX, Gateway::nginx(&sandbox.path("")).await);
    }
    if options.wants(VLLM_ROUTER) {
        keep(&mut gateways, &mut report, VLLM_ROUTER, Gateway::vllm_router().await);
    }

    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for gateway in &gateways {
            cpu_per_request(gateway, &options, &mut report).await;
        }
        for gateway in &gateways {
            latency(gateway, &mut report);
        }
        for gateway in gateways.iter().filter(|_| options.streams > 0) {
            streams(gateway, &options, &mut report).await;
        }
    }
    for gateway in gateways {
        report.add(gateway.name, Figure::ResidentMib, gateway.resident() as f64 / f64::from(1 << 20));
        gateway.finish().await;
    }

    println!("{}", report.markdown());
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_vec_pretty(&report).unwrap()).unwrap();
    }
    ExitCode::SUCCESS
}

fn keep(gateways: &mut Vec<Gateway>, report: &mut Report, name: &'static str, found: Found) {
    match found {
        Ok(gateway) => gateways.push(gateway),
        Err(why) => {
            report.absent.insert(name, why);
        }
    }
}

async fn cpu_per_request(gateway: &Gateway, options: &Options, report: &mut Report) {
    for (figure, here, there) in
        [(Figure::CpuPerRequest, Some(FIRST_CPU), Some(SECOND_CPU)), (Figure::CpuPerRequestAnyCpu, None, None)]
    {
        gateway.pin(there, here);
        pin_load(here);
        let (before, begun) = (gateway.cpu_time(), Instant::now());
        let requests = load::whole_answers(gateway.address, CONNECTIONS, options.span).await;
        let (cpu, took) = (gateway.cpu_time().saturating_sub(before), begun.elapsed());
        report.add(gateway.name, figure, micros(cpu) / requests as f64);
        if figure == Figure::CpuPerRequest {
            report.add(gateway.name, Figure::RequestsPerSecond, requests as f64 / took.as_secs_f64());
        }
    }
}

/// Measures latency with all processes on one CPU: across CPUs the figure would include the wake-up of a sleeping CPU.
fn latency(gateway: &Gateway, report: &mut Report) {
    gateway.pin(Some(FIRST_CPU), Some(FIRST_CPU));
    pin_load(Some(FIRST_CPU));
    let answers = load::latencies(gateway.address, ANSWERS);
    let first_tokens = load::first_frames(gateway.address, FIRST_TOKENS);
    let slow = answers.iter().chain(&first_tokens).filter(|time| FORTY_MS.contains(time)).count();
    report.add(gateway.name, Figure::FortyMs, slow as f64);
    for (times, p50, p99) in
        [(answers, Figure::AddedP50, Figure::AddedP99), (first_tokens, Figure::FirstTokenP50, Figure::FirstTokenP99)]
    {
        for (figure, share) in [(p50, 0.5), (p99, 0.99)] {
            let floor = if gateway.name == DIRECT { 0.0 } else { report.last(DIRECT, figure).unwrap_or(0.0) };
            report.add(gateway.name, figure, micros(quantile(&times, share)) - floor);
        }
    }
    pin_load(None);
}

async fn streams(gateway: &Gateway, options: &Options, report: &mut Report) {
    gateway.pin(None, None);
    let frames = u64::try_from(options.stream_span.as_nanos() / backend::PACE.as_nanos()).unwrap();
    let before = gateway.cpu_time();
    let result = load::streams(gateway.address, options.streams, frames).await;
    let cpu = gateway.cpu_time().saturating_sub(before);
    report.add(gateway.name, Figure::FramesLost, result.lost as f64);
    report.add(gateway.name, Figure::Stalls, result.stalls as f64);
    report.add(gateway.name, Figure::TransitP50, micros(quantile(&result.transit, 0.5)));
    report.add(gateway.name, Figure::TransitP99, micros(quantile(&result.transit, 0.99)));
    report.add(gateway.name, Figure::CpuPerFrame, micros(cpu) / result.transit.len() as f64);
}

fn quantile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}
