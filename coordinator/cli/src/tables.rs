//! Models, as human-readable tables or as the API's own JSON.

use model_boss_client::{Client, in_path};
use model_boss_host::clocks::unix_time;
use model_boss_protocol::{ByteCount, CpuShare, StreamStats, WorkerCores, printable};
use serde_json::Value;

use super::error::CliError;
use super::progress_line::span;

/// `model-boss list`.
pub(super) async fn list(client: &Client, as_json: bool) -> Result<String, CliError> {
    let answer = client.get("/v1/models").await?;
    if as_json {
        return Ok(pretty(&answer));
    }
    // An alias is shown beside its model.
    let rows = items(&answer, "data").filter(|entry| entry["kind"] != "alias").map(|model| {
        if model["kind"] == "task" {
            let ladder: Vec<String> = items(model, "ladder").map(text).collect();
            return [text(&model["id"]), "task".into(), "-".into(), "-".into(), "-".into(), ladder.join(" > ")];
        }
        if model["kind"] == "cloud" {
            let served_as = format!("elsewhere, as {}", text(&model["served_as"]));
            return [text(&model["id"]), "cloud".into(), "-".into(), "-".into(), "-".into(), served_as];
        }
        if model["kind"] == "adapter" {
            let parent = format!("beside {}", text(&model["parent"]));
            return [text(&model["id"]), "adapter".into(), "-".into(), "-".into(), "-".into(), parent];
        }
        let mut name = text(&model["id"]);
        for alias in items(model, "aliases") {
            name.push_str(&format!(" ({})", text(alias)));
        }
        let context = model["context_length"].as_u64().map_or_else(|| "-".to_owned(), |tokens| tokens.to_string());
        [
            name,
            text(&model["category"]),
            text(&model["device"]),
            context,
            bytes(&model["size"]),
            if model["downloaded"] == false { "not downloaded".to_owned() } else { status(&model["status"]) },
        ]
    });
    Ok(table(["MODEL", "CATEGORY", "DEVICE", "CONTEXT", "SIZE", "STATUS"], rows))
}

/// `model-boss ps`.
pub(super) async fn ps(client: &Client, as_json: bool) -> Result<String, CliError> {
    let answer = client.get("/api/v1/slots").await?;
    if as_json {
        return Ok(pretty(&answer));
    }
    // The API gives times as seconds since 1970.
    let now = unix_time();
    let rows = items(&answer, "slots").map(|slot| {
        let parts: Vec<(String, ByteCount)> = serde_json::from_value(slot["parts"].clone()).unwrap_or_default();
        let devices: Vec<_> = parts.iter().map(|(device, _)| device.as_str()).collect();
        let size: ByteCount = parts.iter().map(|(_, bytes)| *bytes).sum();
        let state = match (slot["state"].as_str(), slot["progress"].as_f64()) {
            (Some("loading"), Some(share)) if share > 0.0 => format!("loading {:.0}%", share * 100.0),
            (state, _) => state.unwrap_or("-").to_owned(),
        };
        let adapters: Vec<String> = items(slot, "adapters").map(text).collect();
        let (mut model, devices) = (text(&slot["model"]), devices.join(", "));
        if !adapters.is_empty() {
            model.push_str(&format!(" (+ {})", adapters.join(", ")));
        }
        [model, size.to_string(), devices, state, layers(slot), threads(slot), until(slot, now)]
    });
    let mut shown = table(["MODEL", "SIZE", "DEVICE", "STATE", "LAYERS", "THREADS", "UNTIL"], rows);
    let parked = items(&answer, "parked").map(|parked| {
        let age = parked["parked_at"]
            .as_f64()
            .map_or_else(|| "-".to_owned(), |at| format!("{} ago", span((now - at).max(0.0) as u64)));
        [
            text(&parked["model_name"]),
            bytes(&parked["bytes"]),
            parked["tokens"].as_u64().map_or_else(|| "-".to_owned(), |tokens| tokens.to_string()),
            text(&parked["place"]),
            age,
        ]
    });
    let parked: Vec<_> = parked.collect();
    if !parked.is_empty() {
        shown.push('\n');
        shown.push_str(&table(["PARKED", "SIZE", "TOKENS", "IN", "SINCE"], parked.into_iter()));
    }
    Ok(shown)
}

/// `model-boss show`.
pub(super) async fn show(client: &Client, model: &str, as_json: bool) -> Result<String, CliError> {
    let answer = client.get(&format!("/v1/models/{}", in_path(model))).await?;
    if as_json {
        return Ok(pretty(&answer));
    }
    let fields = answer.as_object().into_iter().flatten().filter_map(|(name, value)| {
        let value = match (name.as_str(), value) {
            ("object" | "created", _) | (_, Value::Null) => return None,
            ("size", value) => bytes(value),
            ("status", value) => status(value),
            (_, Value::Array(items)) if items.is_empty() => return None,
            (_, Value::Object(fields)) if fields.is_empty() => return None,
            (_, Value::Array(items)) => items.iter().map(text).collect::<Vec<_>>().join(", "),
            (_, value) => text(value),
        };
        Some([name.clone(), value])
    });
    Ok(table(["FIELD", "VALUE"], fields))
}

pub(super) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

pub(super) fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

/// A string without its quotes; anything else as JSON.
pub(super) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub(super) fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), |bytes| ByteCount(bytes).to_string())
}

/// The state in words, such as `loading 43%` or `failed: why`.
fn status(status: &Value) -> String {
    let word = text(&status["value"]);
    match (status["progress"].as_f64(), status["failure"].as_str()) {
        (_, Some(failure)) => format!("{word}: {failure}"),
        (Some(share), None) => format!("{word} {:.0}%", share * 100.0),
        (None, None) => word,
    }
}

/// The threads that compute on the host, such as `2 of 8`, or `1 of 8, nice 7` for less than a core; `-` for a model
/// that does not compute there now.
fn threads(slot: &Value) -> String {
    let read = |field: &str| slot[field].clone();
    match (serde_json::from_value(read("cpu_share")), serde_json::from_value(read("cores"))) {
        (Ok(CpuShare { threads, nice, .. }), Ok(WorkerCores { threads: all, .. })) => {
            let part = if threads < all { format!("{threads} of {all}") } else { threads.to_string() };
            if nice > 0 { format!("{part}, nice {nice}") } else { part }
        }
        _ => "-".to_owned(),
    }
}

/// The layers in words, such as `14 of 28 streamed, 3.20 GB/s, overlap 0.97`; `stay` where all are resident.
fn layers(slot: &Value) -> String {
    let Ok(Some(stats)) = serde_json::from_value::<Option<StreamStats>>(slot["layers"].clone()) else {
        let word = if slot["streamed"] == true { "streamed" } else { "stay" };
        return word.to_owned();
    };
    let all = stats.resident_layers + stats.streamed_layers;
    let mut text = format!("{} of {all} streamed", stats.streamed_layers);
    if stats.steps > 0 {
        text += &format!(", {:.2} GB/s, overlap {:.2}", stats.bytes_per_second / 1e9, stats.overlap);
    }
    text
}

/// The time until an unused slot is unloaded.
fn until(slot: &Value, now: f64) -> String {
    match slot["unload_at"].as_f64() {
        _ if slot["pinned"] == true => "pinned".to_owned(),
        _ if slot["running"].as_u64().is_some_and(|running| running > 0) => "in use".to_owned(),
        None => "-".to_owned(),
        Some(at) => {
            let left = (at - now).max(0.0).round() as u64;
            match (left / 3_600, left / 60 % 60, left % 60) {
                (0, 0, seconds) => format!("in {seconds}s"),
                (0, minutes, seconds) => format!("in {minutes}m {seconds}s"),
                (hours, minutes, _) => format!("in {hours}h {minutes}m"),
            }
        }
    }
}

/// A table with columns as wide as their widest cell, two spaces between them.
pub(super) fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    // A cell stays within its line, even with control characters in its text.
    let rows = std::iter::once(head.map(str::to_owned)).chain(rows);
    let rows: Vec<[String; N]> = rows.map(|row| row.map(|cell| printable(&cell).into_owned())).collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; N]| {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["guide".to_owned(), "7.41 MiB".to_owned()], ["a".to_owned(), "-".to_owned()]];
        assert_eq!(table(["MODEL", "SIZE"], rows.into_iter()), "MODEL  SIZE\nguide  7.41 MiB\na      -\n");
    }

    #[test]
    fn the_time_left_is_said_for_people() {
        let slot = |at: f64| json!({ "unload_at": at, "running": 0, "pinned": false });
        assert_eq!(until(&slot(130.0), 100.2), "in 30s");
        assert_eq!(until(&slot(400.0), 100.0), "in 5m 0s");
        assert_eq!(until(&slot(8_000.5), 0.0), "in 2h 13m");
        assert_eq!(until(&slot(10.0), 100.0), "in 0s");
        assert_eq!(until(&json!({ "unload_at": null, "running": 0 }), 0.0), "-");
        assert_eq!(until(&json!({ "unload_at": null, "running": 2 }), 0.0), "in use");
        assert_eq!(until(&json!({ "unload_at": null, "pinned": true }), 0.0), "pinned");
    }

    #[test]
    fn layers_that_come_and_go_show_what_that_takes() {
        let stats = StreamStats {
            resident_layers: 14,
            streamed_layers: 14,
            steps: 2,
            bytes_per_second: 3.2e9,
            overlap: 0.971,
            ..StreamStats::default()
        };
        let shown = layers(&json!({ "streamed": true, "layers": stats }));
        assert_eq!(shown, "14 of 28 streamed, 3.20 GB/s, overlap 0.97");
        let new = StreamStats { steps: 0, ..stats };
        assert_eq!(layers(&json!({ "streamed": true, "layers": new })), "14 of 28 streamed");
        assert_eq!(layers(&json!({ "streamed": true, "layers": null })), "streamed");
        assert_eq!(layers(&json!({ "streamed": false })), "stay");
    }

    #[test]
    fn a_status_says_how_far_or_why() {
        assert_eq!(status(&json!({ "value": "loading", "progress": 0.43 })), "loading 43%");
        assert_eq!(status(&json!({ "value": "failed", "failure": "no such file" })), "failed: no such file");
        assert_eq!(status(&json!({ "value": "loaded" })), "loaded");
    }
}
