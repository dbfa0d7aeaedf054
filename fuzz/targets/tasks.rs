//! Any text as `tasks.yaml`: it is parsed, or refused with its faults, in bounded time and memory. In a parsed file
//! every task resolves, and with clouds forbidden no ladder has a rung of a cloud provider after its first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model_boss_core::AdapterName;
use model_boss_protocol::ClientId;
use model_boss_tasks::{CloudFallback, TaskNames, Providers, NameQuestion, Surroundings, TasksFile, resolve};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let providers = Providers::new().with("lan", false).with("away", true);
    let names = match TasksFile::read(text, &providers) {
        Ok(file) => TaskNames::new(file),
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a reason");
            return;
        }
    };
    let clients = names.file().clients.keys().map(String::as_str).chain(["nobody"]);
    for client in clients.take(8).map(ClientId::from) {
        for task in names.file().tasks.keys().take(32) {
            let around = Surroundings {
                names: &names,
                providers: &providers,
                cloud_fallback: CloudFallback::Off,
                model_named: &|name| (name == "guide").then(|| name.into()),
                adapter_named: &|name| match name {
                    "guide:tone" => AdapterName::Known { model: "guide".into(), adapter: "tone".to_owned() },
                    _ => AdapterName::Other,
                },
            };
            let question = NameQuestion { model: None, task: Some(task), client: &client, no_fallback: false };
            // A client's own names and permissions may name another ladder, or none.
            let Ok(resolved) = resolve(&question, &around) else { continue };
            let behind = resolved.ladder().rungs().filter(|rung| rung.position > 0);
            assert!(behind.into_iter().all(|rung| !providers.is_cloud(&rung.target)), "a cloud behind the first place");
        }
    }
});
