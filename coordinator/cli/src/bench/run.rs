//! The course of a measurement: warm-up, rounds in which servers take turns, and the report of what was measured.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use model_boss_client::Client;
use model_boss_config::secrets::without_secrets;
use model_boss_host::terminal;
use tokio::signal::ctrl_c;
use tokio::task::JoinSet;

use super::super::error::CliError;
use super::super::progress_line::{ProgressLine, ProgressUnit, ShownProgress};
use super::super::runtime::print;
use super::super::tables::pretty;
use super::args::ModelBenchArgs;
use super::endpoint::{BenchRequest, Endpoint, Extras, RequestError};
use super::picture;
use super::prompts::BenchPrompts;
use super::report::{self, BenchReport, LevelRounds, MeasuredServer};
use super::sample::RoundSample;

/// The exit code after Ctrl-C.
const STOPPED: u8 = 130;
/// The most words of the warm-up's prompt.
const WARM_WORDS: usize = 64;
/// The answer's length in the warm-up.
const WARM_TOKENS: u32 = 8;

/// Measures a model of the coordinator, and of another server if one is named.
pub(crate) async fn bench(client: &Client, args: &ModelBenchArgs) -> Result<ExitCode, CliError> {
    let mut line = ProgressLine::for_output(args.json);
    let (mut report, mut is_stopped) = (BenchReport::new(args), false);
    let measured = tokio::select! {
        measured = measure(client, args, &mut report, &mut line) => measured,
        _ = ctrl_c() => {
            is_stopped = true;
            Ok(())
        }
    };
    line.end().map_err(CliError::Output)?;
    measured?;
    report.is_whole = !is_stopped;
    if is_stopped {
        terminal::say("model-boss: stopped; these are the figures so far");
    }
    print(&if args.json { pretty(&report::as_json(&report)) } else { report::as_text(&report) })?;
    if let Some(file) = &args.svg {
        std::fs::write(file, picture::svg(&report)).map_err(|error| CliError::Write(file.clone(), error))?;
        if !args.json {
            terminal::say(&format!("picture: {}", file.display()));
        }
    }
    Ok(match (is_stopped, report.has_all_figures()) {
        (true, _) => ExitCode::from(STOPPED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}

async fn measure(
    client: &Client,
    args: &ModelBenchArgs,
    report: &mut BenchReport,
    line: &mut ProgressLine,
) -> Result<(), CliError> {
    let mut endpoints = endpoints(client, args).await?;
    let prompts = BenchPrompts { seed: args.seed, words: args.prompt_tokens as usize, are_equal: args.cached };
    // The tokens of a few words tell how many words a prompt needs. More might exceed a small context.
    let few = BenchPrompts { words: prompts.words.min(WARM_WORDS), ..prompts };
    let mut counted = None;
    for endpoint in &mut endpoints {
        show(line, format!("warming up {}", endpoint.url()), 0, 0, Duration::ZERO)?;
        let prompt_tokens = warm_up(endpoint, args, few).await?;
        counted = counted.or(prompt_tokens);
    }
    let prompts = counted.map_or(prompts, |measured| few.with_tokens(args.prompt_tokens, measured));
    if args.cached {
        // The text of all prompts is known now, and has to be in the caches.
        for endpoint in &endpoints {
            let request = BenchRequest { prompt: prompts.prompt(0, 1, 0), tokens: 2, seed: args.seed, is_cached: true };
            endpoint.measure(&request, Instant::now()).await.map_err(|error| failed(endpoint, &error))?;
        }
    }
    report.servers = endpoints.iter().map(MeasuredServer::of).collect();
    let all: u64 = args.streams.iter().map(|streams| u64::from(*streams)).sum::<u64>() * u64::from(args.rounds);
    let (all, mut done, began) = (all * endpoints.len() as u64, 0, Instant::now());
    for streams in &args.streams {
        report.levels.push(LevelRounds { streams: *streams, rounds: vec![Vec::new(); endpoints.len()] });
        for round in 0..args.rounds {
            // The first server changes with each round: a machine that heats up or slows down hits both alike.
            let mut order: Vec<usize> = (0..endpoints.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for server in order {
                let name = endpoints.get(server).map(Endpoint::url).unwrap_or_default();
                let noun = if *streams == 1 { "stream" } else { "streams" };
                let stage = format!("{streams} {noun}, round {} of {}, {name}", round + 1, args.rounds);
                show(line, stage, done, all, began.elapsed())?;
                let Some(endpoint) = endpoints.get(server) else { continue };
                let sample = one_round(endpoint, args, prompts, *streams, round).await;
                if let Some(rounds) = report.levels.last_mut().and_then(|level| level.rounds.get_mut(server)) {
                    rounds.push(sample);
                }
                done += u64::from(*streams);
            }
        }
    }
    Ok(())
}

/// The servers: ours first.
async fn endpoints(client: &Client, args: &ModelBenchArgs) -> Result<Vec<Endpoint>, CliError> {
    let patience = Duration::from_secs(args.timeout);
    let mut endpoints = vec![Endpoint::new(client.clone(), String::new(), args.model.clone(), patience)];
    if let Some(url) = &args.against {
        let key = args
            .against_key
            .as_ref()
            .map(|name| std::env::var(name).map_err(|_| CliError::NoKeyVariable(name.clone())));
        let peer = Client::of_server(url, key.transpose()?);
        let (peer, prefix) = peer.map_err(|_| CliError::BadServer(without_secrets(url)))?;
        let mut endpoint = Endpoint::new(peer, prefix, args.model.clone(), patience);
        match (&args.against_model, endpoint.models().await.as_slice()) {
            (Some(name), _) => endpoint.model.clone_from(name),
            (None, listed) if listed.contains(&args.model) => {}
            (None, [only]) => endpoint.model.clone_from(only),
            (None, _) => {}
        }
        endpoints.push(endpoint);
    }
    Ok(endpoints)
}

/// Loads the model, and finds the fields that the server takes. Returns the tokens of the warm-up's prompt.
async fn warm_up(
    endpoint: &mut Endpoint,
    args: &ModelBenchArgs,
    prompts: BenchPrompts,
) -> Result<Option<u64>, CliError> {
    // Rounds count from 0, so this prompt is no other's.
    let prompt = prompts.prompt(u32::MAX, 0, 0);
    let tokens = WARM_TOKENS.min(args.tokens);
    let request = BenchRequest { prompt, tokens, seed: args.seed, is_cached: args.cached };
    let mut last = None;
    for extras in Extras::TRIED {
        endpoint.extras = extras;
        match endpoint.measure(&request, Instant::now()).await {
            Ok(sample) => return Ok(sample.prompt_tokens),
            Err(error) if error.is_about_fields() => last = Some(error),
            Err(error) => return Err(failed(endpoint, &error)),
        }
    }
    let error = last.unwrap_or_else(|| RequestError::Broken("no request was sent".to_owned()));
    Err(failed(endpoint, &error))
}

fn failed(endpoint: &Endpoint, error: &RequestError) -> CliError {
    CliError::BenchRequest { server: endpoint.url(), model: endpoint.model.clone(), why: error.to_string() }
}

/// Sends the requests of one round at once, and waits for all answers.
async fn one_round(
    endpoint: &Endpoint,
    args: &ModelBenchArgs,
    prompts: BenchPrompts,
    streams: u32,
    round: u32,
) -> RoundSample {
    let began = Instant::now();
    let mut running = JoinSet::new();
    for stream in 0..streams {
        let prompt = prompts.prompt(round, streams, stream);
        let request = BenchRequest { prompt, tokens: args.tokens, seed: args.seed, is_cached: args.cached };
        let endpoint = endpoint.clone();
        running.spawn(async move { endpoint.measure(&request, began).await });
    }
    let mut sample = RoundSample::default();
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(Ok(answer)) => sample.answers.push(answer),
            Ok(Err(error)) => sample.errors.push(error.to_string()),
            Err(error) => sample.errors.push(error.to_string()),
        }
    }
    sample
}

fn show(line: &mut ProgressLine, stage: String, done: u64, all: u64, spent: Duration) -> Result<(), CliError> {
    let rate = done as f64 / spent.as_secs_f64().max(0.001);
    let progress = ShownProgress {
        stage,
        file: String::new(),
        total: all,
        completed: done,
        rate,
        trouble: None,
        at: Instant::now(),
        unit: ProgressUnit::Steps("requests"),
    };
    line.show(&progress).map_err(CliError::Output)
}
