//! llama.cpp's server: its command line (RC-17).

use std::collections::BTreeMap;
use std::path::Path;

use model_boss_protocol::{Category, DeviceId, LlamaArgs, Thinking};

use crate::files::LlamaFiles;
use crate::launch::{Facts, Launch, LaunchError, text};

/// The context of a sequence if none is set; the size estimate assumes the same.
const USUAL_CONTEXT: u64 = 4096;
/// More layers than any model has, which llama-server takes as all.
const ALL_LAYERS: &str = "999";
/// A text is embedded or ranked in one piece, so the physical batch must hold it; beyond this size the buffers get
/// large.
const LARGEST_BATCH: u64 = 8_192;
/// The variable from which llama-server reads its key, so that the key is not in the list of processes.
const KEY: &str = "LLAMA_API_KEY";

/// Options of llama-server besides the facts of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct LlamaServer<'a> {
    /// The text of a Jinja template in place of the file's own.
    pub chat_template: Option<&'a str>,
    /// Whether a model that can reason before it answers does, and for how many tokens.
    pub thinking: Option<Thinking>,
    /// Arguments that operators add, the least important first: llama-server uses the last of repeated options.
    pub args: [Option<&'a LlamaArgs>; 3],
}

/// The command line of llama-server.
pub fn llama_server(
    program: &Path,
    files: &LlamaFiles,
    facts: &Facts<'_>,
    more: &LlamaServer<'_>,
) -> Result<Launch, LaunchError> {
    let context = facts.context.unwrap_or(USUAL_CONTEXT);
    let sequences = u64::from(facts.max_concurrent.max(1));
    let mut args = Args::default();
    args.pair("--model", text(&files.model)?);
    if let Some(projector) = &files.projector {
        args.pair("--mmproj", text(projector)?);
    }
    args.pair("--alias", facts.model);
    args.pair("--host", "127.0.0.1");
    args.pair("--port", facts.port);
    // llama-server divides the context among its sequences; a manifest means that of each sequence.
    args.pair("--ctx-size", context.saturating_mul(sequences));
    args.pair("--parallel", sequences);
    on_devices(&mut args, facts);
    if !facts.kv_cache_type.is_auto() {
        args.pair("--cache-type-k", facts.kv_cache_type);
        args.pair("--cache-type-v", facts.kv_cache_type);
    }
    match facts.category {
        Category::Embedding => args.word("--embeddings"),
        Category::Reranking => args.word("--reranking"),
        _ => args.word("--jinja"),
    }
    if matches!(facts.category, Category::Embedding | Category::Reranking) {
        let batch = context.min(LARGEST_BATCH);
        args.pair("--batch-size", batch);
        args.pair("--ubatch-size", batch);
    }
    if let Some(template) = more.chat_template {
        args.pair("--chat-template", template);
    }
    if let Some(tokens) = more.thinking.and_then(Thinking::budget) {
        args.pair("--reasoning-budget", tokens);
    }
    for given in more.args.into_iter().flatten() {
        args.0.extend_from_slice(given.words());
    }
    let env = BTreeMap::from([(KEY.to_owned(), facts.token.reveal().to_owned())]);
    Ok(Launch { program: program.to_owned(), args: args.0, env, folder: None })
}

/// The device options. The process sees only the GPUs of its lease, in the order of the lease.
fn on_devices(args: &mut Args, facts: &Facts<'_>) {
    let on_gpu = facts.parts.iter().any(|(device, _)| *device != DeviceId::Cpu);
    if !on_gpu {
        args.pair("--n-gpu-layers", 0);
        // A build for a vendor whose GPUs no variable hides would still use them for large products.
        args.pair("--device", "none");
        return;
    }
    args.pair("--n-gpu-layers", ALL_LAYERS);
    args.pair("--flash-attn", "auto");
    if facts.parts.len() > 1 {
        args.pair("--split-mode", "layer");
        args.pair("--tensor-split", facts.tensor_split());
    }
}

#[derive(Default)]
struct Args(Vec<String>);

impl Args {
    fn word(&mut self, word: &str) {
        self.0.push(word.to_owned());
    }

    fn pair(&mut self, name: &str, value: impl ToString) {
        self.0.extend([name.to_owned(), value.to_string()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::testing::Load;
    use model_boss_protocol::KvCacheType;

    fn launch(load: &Load, more: &LlamaServer<'_>) -> Launch {
        let files = LlamaFiles { model: load.source.clone(), projector: None };
        llama_server(Path::new("/opt/llama-server"), &files, &load.facts(), more).unwrap()
    }

    fn value<'a>(launch: &'a Launch, name: &str) -> Option<&'a str> {
        let at = launch.args.iter().rposition(|word| word == name)?;
        launch.args.get(at + 1).map(String::as_str)
    }

    #[test]
    fn rc_17_on_the_cpu_it_is_told_of_no_gpu() {
        let launch = launch(&Load::on_cpu(), &LlamaServer::default());
        assert_eq!(value(&launch, "--model"), Some("/models/m.gguf"));
        assert_eq!((value(&launch, "--host"), value(&launch, "--port")), (Some("127.0.0.1"), Some("8300")));
        assert_eq!((value(&launch, "--ctx-size"), value(&launch, "--parallel")), (Some("8192"), Some("4")));
        assert_eq!((value(&launch, "--n-gpu-layers"), value(&launch, "--device")), (Some("0"), Some("none")));
        assert!(!launch.args.iter().any(|word| word == Load::on_cpu().token.reveal()));
        assert_eq!(launch.env[KEY], Load::on_cpu().token.reveal());
    }

    #[test]
    fn rc_17_layers_are_spread_as_the_lease_is() {
        let one = launch(&Load::on_gpus(&[8]), &LlamaServer::default());
        assert_eq!((value(&one, "--n-gpu-layers"), value(&one, "--tensor-split")), (Some("999"), None));
        let two = launch(&Load::on_gpus(&[8, 4]), &LlamaServer::default());
        assert_eq!(value(&two, "--tensor-split"), Some("8192,4096"));
    }

    #[test]
    fn rc_17_the_category_says_what_it_offers() {
        for (category, word) in
            [(Category::Llm, "--jinja"), (Category::Embedding, "--embeddings"), (Category::Reranking, "--reranking")]
        {
            let load = Load { category, context: Some(512), ..Load::on_cpu() };
            let launch = launch(&load, &LlamaServer::default());
            assert!(launch.args.iter().any(|arg| arg == word), "{word}");
            assert_eq!(value(&launch, "--ubatch-size").is_some(), category != Category::Llm);
        }
    }

    #[test]
    fn en_2_it_keeps_keys_and_values_as_the_manifest_says() {
        let types = |load: &Load, args: Option<&LlamaArgs>| {
            let more = LlamaServer { args: [args, None, None], ..LlamaServer::default() };
            let launch = launch(load, &more);
            ["--cache-type-k", "--cache-type-v"].map(|name| value(&launch, name).map(str::to_owned))
        };
        assert_eq!(types(&Load::on_cpu(), None), [None, None]);
        let load = Load { kv_cache_type: KvCacheType::Q8_0, ..Load::on_cpu() };
        let said = |word: &str| Some(word.to_owned());
        assert_eq!(types(&load, None), [said("q8_0"), said("q8_0")]);
        let args = LlamaArgs::from_line("--cache-type-v f16");
        assert_eq!(types(&load, Some(&args)), [said("q8_0"), said("f16")], "its own arguments come last");
    }

    #[test]
    fn mm_11_what_is_more_important_comes_last() {
        let given = ["--threads 1 -ngl 5", "--threads 2", "--threads 3"].map(LlamaArgs::from_line);
        let more = LlamaServer { args: given.each_ref().map(Some), ..LlamaServer::default() };
        let launch = launch(&Load::on_cpu(), &more);
        assert_eq!((value(&launch, "--threads"), value(&launch, "-ngl")), (Some("3"), Some("5")));
    }
}
