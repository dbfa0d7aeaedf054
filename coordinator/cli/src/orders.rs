//! Orders to a coordinator: unload, move, pin, invalidate, free a device.

use clap::Args;
use model_boss_client::{Client, in_path};
use model_boss_protocol::{ByteCount, KvCacheType, ResidencyMode};
use serde_json::{Value, json};

use super::error::CliError;
use super::views::number_or_word;

/// The residency of a model's layers, in place of the manifest's (docs/streaming.md).
#[derive(Debug, Default, Args)]
pub(super) struct LayerArgs {
    /// auto, resident (in memory or not at all), or stream (within --vram, or the least that works).
    #[arg(long)]
    residency: Option<ResidencyMode>,
    /// Of a streamed model: blocks of layers fetched ahead of the one in use.
    #[arg(long, value_name = "BLOCKS", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// Of a streamed model: layers of a block.
    #[arg(long, value_name = "LAYERS", value_parser = clap::value_parser!(u32).range(1..))]
    block: Option<u32>,
    /// The memory that the model may use on the devices that compute, e.g. 6GiB.
    #[arg(long, value_name = "SIZE")]
    vram: Option<ByteCount>,
    /// The type of keys and values: auto, f32, f16, bf16 or q8_0.
    #[arg(long, value_name = "TYPE")]
    kv_cache_type: Option<KvCacheType>,
}

impl LayerArgs {
    /// Adds the given options to the body of an order or a question.
    pub(super) fn add_to(&self, body: &mut Value) {
        let mut give = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body[name] = value;
            }
        };
        give("residency", self.residency.map(|mode| mode.as_str().into()));
        give("window", self.window.map(Value::from));
        give("block", self.block.map(Value::from));
        give("vram", self.vram.map(|bytes| bytes.0.into()));
        give("kv_cache_type", self.kv_cache_type.map(|kind| kind.as_str().into()));
    }
}

/// `move MODEL DEVICE`.
#[derive(Debug, Args)]
pub(super) struct MoveArgs {
    /// The model's name or alias.
    model: String,
    /// The target device: cpu, cuda:1, …
    device: String,
    /// Evict other models if there is no memory for the second copy.
    #[arg(long)]
    evict: bool,
    /// The priority: 0 to 9, or interactive, normal, batch.
    #[arg(long, default_value = "2")]
    priority: String,
    /// Do not wait until it serves on the new device.
    #[arg(long)]
    no_wait: bool,
}

/// `free DEVICE`.
#[derive(Debug, Args)]
pub(super) struct FreeArgs {
    /// The device: cpu, cuda:0, …
    device: String,
    /// Open the device for models again.
    #[arg(long)]
    back: bool,
    /// Do not wait until the device is empty.
    #[arg(long, conflicts_with = "back")]
    no_wait: bool,
}

/// `pin MODEL`.
#[derive(Debug, Args)]
pub(super) struct PinArgs {
    /// The model's name or alias.
    model: String,
    /// Unpin the model.
    #[arg(long)]
    off: bool,
    /// Restore the manifest's choice.
    #[arg(long, conflicts_with = "off")]
    manifest: bool,
}

/// `model-boss unload`; without a name, every model.
pub(super) async fn unload(client: &Client, model: Option<&str>) -> Result<String, CliError> {
    let body = model.map_or_else(|| json!({}), |model| json!({ "model_name": model }));
    let done = client.post("/api/v1/unload", &body).await?;
    let name = done["model_name"].as_str().or(model);
    Ok(name.map_or_else(|| "every model is unloaded\n".to_owned(), |name| format!("{name} is unloaded\n")))
}

/// `model-boss move`.
pub(super) async fn move_to(client: &Client, args: &MoveArgs) -> Result<String, CliError> {
    let path = waiting(&format!("/api/v1/models/{}/device", in_path(&args.model)), args.no_wait);
    let priority = number_or_word(&args.priority);
    let body = json!({ "device": args.device, "evict": args.evict, "priority": priority });
    let done = client.post(&path, &body).await?;
    let name = done["model_name"].as_str().unwrap_or(&args.model);
    let device = done["device"].as_str().unwrap_or(&args.device);
    Ok(match args.no_wait {
        false => format!("{name} serves from {device}\n"),
        true => format!("{name} is moving to {device}\n"),
    })
}

/// `model-boss free`.
pub(super) async fn free(client: &Client, args: &FreeArgs) -> Result<String, CliError> {
    let verb = if args.back { "open" } else { "drain" };
    let path = waiting(&format!("/api/v1/devices/{}/{verb}", in_path(&args.device)), args.no_wait);
    let done = client.post(&path, &json!({})).await?;
    let device = done["device"].as_str().unwrap_or(&args.device);
    Ok(match (args.back, args.no_wait) {
        (true, _) => format!("{device} is open to models again\n"),
        (false, true) => format!("{device} is being freed\n"),
        (false, false) => format!("{device} is free; `model-boss free {device} --back` gives it to models again\n"),
    })
}

/// `model-boss pin`.
pub(super) async fn pin(client: &Client, args: &PinArgs) -> Result<String, CliError> {
    let pinned = match (args.manifest, args.off) {
        (true, _) => Value::Null,
        (false, off) => Value::from(!off),
    };
    let path = format!("/api/v1/models/{}/pin", in_path(&args.model));
    let done = client.post(&path, &json!({ "pinned": pinned })).await?;
    let name = done["model_name"].as_str().unwrap_or(&args.model);
    Ok(match done["status"].as_str() {
        Some("as_manifest") => format!("{name} is pinned as its manifest says\n"),
        Some(status) => format!("{name} is {status}\n"),
        None => format!("{name}: done\n"),
    })
}

/// `model-boss invalidate`.
pub(super) async fn invalidate(client: &Client, model: &str) -> Result<String, CliError> {
    let done = client.post(&format!("/api/v1/models/{}/invalidate", in_path(model)), &json!({})).await?;
    let name = done["model_name"].as_str().unwrap_or(model);
    Ok(format!("{name} is loaded anew after its requests have ended\n"))
}

/// The path of an order, which may not wait for its end.
pub(super) fn waiting(path: &str, no_wait: bool) -> String {
    if no_wait { format!("{path}?wait=false") } else { path.to_owned() }
}
