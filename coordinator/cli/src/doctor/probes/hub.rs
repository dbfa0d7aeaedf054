//! The cache of downloads.

use std::fs;
use std::path::Path;

use model_boss_config::Config;
use model_boss_config::secrets::without_secrets;
use model_boss_hub::HubSettings;
use model_boss_protocol::ByteCount;

use super::super::checks::hub::HubFacts;
use super::folders;

/// The facts of the cache of this user.
pub(crate) fn hub(config: &Config) -> HubFacts {
    let settings = HubSettings::of_environment();
    let folder = folders::folder(&settings.cache);
    let (mut size, mut repositories, mut parts) = (0, 0, 0);
    for repository in fs::read_dir(&settings.cache).into_iter().flatten().flatten() {
        if !repository.file_name().to_string_lossy().starts_with("models--") {
            continue;
        }
        repositories += 1;
        for (name, bytes) in files(&repository.path().join("blobs")) {
            size += bytes;
            if name.ends_with(".incomplete") || name.contains(".model-boss.") {
                parts += bytes;
            }
        }
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let proxies = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    HubFacts {
        exists: folder.exists,
        denied: folder.denied,
        size: ByteCount(size),
        repositories,
        parts: ByteCount(parts),
        free: folder.free,
        is_plain: settings.endpoint.starts_with("http://") && !settings.endpoint.contains("://127.0.0.1"),
        endpoint: without_secrets(&settings.endpoint),
        has_token: settings.token.is_some(),
        is_offline: settings.offline,
        auto_pull: config.auto_pull,
        proxy: proxies.into_iter().find_map(variable).map(|url| without_secrets(&url)),
        cache: settings.cache,
    }
}

/// The files of a folder, with the bytes that they take on disk: a part of a download has holes.
fn files(folder: &Path) -> Vec<(String, u64)> {
    use std::os::unix::fs::MetadataExt;

    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sized = entries.filter_map(|entry| {
        let about = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some((entry.file_name().to_string_lossy().into_owned(), about.blocks().saturating_mul(512)))
    });
    sized.collect()
}
