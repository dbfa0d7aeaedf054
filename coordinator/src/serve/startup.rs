//! The first lines on the terminal: addresses, models, devices, and one command to try.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;

use model_boss_catalog::Catalog;
use model_boss_core::LedgerState;
use model_boss_host::probe::DeviceSample;
use model_boss_host::sandbox::WorkerConfinement;
use model_boss_host::terminal::{self, Code, Terminal};
use model_boss_lease_store::EmbeddedStore;
use model_boss_protocol::{ByteCount, Category};

use crate::leases::StoreStatus;
use crate::tasks::LiveTasks;

/// The state at the start.
pub(super) struct Startup<'a> {
    /// The addresses that the server listens on; never empty.
    pub(super) addresses: &'a [SocketAddr],
    /// Whether there is HTTPS. Programs of this machine may use plain HTTP all the same.
    pub(super) has_tls: bool,
    /// Whether requests need a key.
    pub(super) needs_key: bool,
    /// The models, and the faults of manifests.
    pub(super) catalog: &'a Catalog,
    pub(super) tasks: &'a LiveTasks,
    pub(super) devices: &'a [DeviceSample],
    pub(super) confinement: &'a WorkerConfinement,
    /// The state of the lease store.
    pub(super) store: &'a StoreStatus,
    pub(super) state_dir: &'a Path,
    /// The state folder of earlier versions, if it exists and none is configured.
    pub(super) earlier_state: Option<&'a Path>,
    /// The reason why there are no NVIDIA GPUs.
    pub(super) no_gpu: Option<&'a str>,
}

impl Startup<'_> {
    /// Writes the lines to standard output, with bold names on a terminal.
    pub(super) fn print(&self) {
        let mut out = terminal::out();
        let bold = terminal::out_is_terminal() && std::env::var_os("NO_COLOR").is_none();
        // The parent process may have closed the pipe; the log continues.
        let _ = self.write(&mut out, bold).and_then(|()| out.flush());
    }

    fn write(&self, out: &mut Terminal<impl Write>, bold: bool) -> io::Result<()> {
        let url = |address: &SocketAddr| match self.has_tls && !address.ip().is_loopback() {
            true => format!("https://{address}"),
            false => format!("http://{address}"),
        };
        let addresses: Vec<String> = self.addresses.iter().map(url).collect();
        writeln!(out, "model-boss {} listens on {}", env!("CARGO_PKG_VERSION"), addresses.join(" and "))?;
        let mut line = |name: &str, text: &dyn fmt::Display| {
            if bold {
                out.code(Code::Bold)?;
            }
            write!(out, "{name:<9}")?;
            if bold {
                out.code(Code::Plain)?;
            }
            writeln!(out, "{text}")
        };
        for device in self.devices {
            line("device", &format_args!("{}", DeviceLine(device)))?;
        }
        if let Some(why) = self.no_gpu {
            line("device", &format_args!("no NVIDIA GPU: {why}"))?;
        }
        line("sandbox", self.confinement)?;
        for model in self.catalog.models() {
            let description = &model.description;
            let aliases = if description.aliases.is_empty() {
                String::new()
            } else {
                let names: Vec<_> = description.aliases.iter().map(ToString::to_string).collect();
                format!(" (also {})", names.join(", "))
            };
            let (category, size) = (description.category, description.size.bytes);
            line("model", &format_args!("{}{aliases}: {category}, about {size}", description.id))?;
        }
        if self.catalog.models().next().is_none() {
            line("model", &format_args!("none yet: put a manifest into the folder of manifests"))?;
        }
        let current = self.tasks.current();
        for (task, what) in &current.names.file().tasks {
            line("task", &format_args!("{task}: {}", what.ladder.join(", else ")))?;
        }
        for problem in &self.catalog.problems {
            line("problem", &format_args!("{problem}"))?;
        }
        line("state", &format_args!("{}", self.state_dir.display()))?;
        if let Some(earlier) = self.earlier_state.filter(|folder| folder.join(EmbeddedStore::FILE).is_file()) {
            line(
                "problem",
                &format_args!(
                    "{}/ in the folder of the start is of an earlier version and is not read any more: move its files to {}, \
                 or start with --state-dir {}",
                    earlier.display(),
                    self.state_dir.display(),
                    earlier.display()
                ),
            )?;
        }
        let StoreStatus { store, state, warnings, .. } = self.store;
        for warning in warnings {
            line("problem", &format_args!("{warning}"))?;
        }
        match state {
            LedgerState::Open => line("leases", &format_args!("{store}"))?,
            LedgerState::Recovering { left } => {
                let seconds = left.as_secs_f64().ceil();
                line(
                    "leases",
                    &format_args!("{store}, which may have lost records: nothing is loaded for {seconds} s"),
                )?;
            }
            LedgerState::Away { detail } => {
                line(
                    "problem",
                    &format_args!("{store}, tried until it is reached; nothing is loaded before: {detail}"),
                )?;
            }
        }
        // A chat says more than a vector.
        let first = |category: Category| {
            self.catalog.models().find(|model| model.description.category == category).map(|model| (category, model))
        };
        let known = [Category::Llm, Category::Embedding, Category::Reranking, Category::Vision];
        let found = known.into_iter().find_map(first);
        if let Some((category, model)) = found {
            let (path, question) = match category {
                Category::Embedding | Category::Vision => ("embeddings", r#""input":"a note""#),
                Category::Reranking => ("rerank", r#""query":"which one?","documents":["a note","another"]"#),
                _ => ("chat/completions", r#""messages":[{"role":"user","content":"Which port do you listen on?"}]"#),
            };
            let model = &model.description.id;
            let address = addresses.first().map_or("", String::as_str);
            let key = if self.needs_key { " -H 'authorization: Bearer KEY'" } else { "" };
            let kind = "-H 'content-type: application/json'";
            line(
                "try",
                &format_args!("curl {address}/v1/{path}{key} {kind} -d '{{{question},\"model\":\"{model}\"}}'"),
            )?;
        }
        Ok(())
    }
}

struct DeviceLine<'a>(&'a DeviceSample);

impl fmt::Display for DeviceLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceSample { device, name, capacity, reserve, used, .. } = self.0;
        write!(f, "{device}: {name}")?;
        let known = |bytes: &Option<ByteCount>| bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string());
        write!(f, ", {} of memory, {} in use, {reserve} kept free", known(capacity), known(used))
    }
}
