//! The files of the dashboard at `/`. They are part of the program, so that the page needs no network and always fits
//! the API beside it (docs/adr/0066-the-dashboard-is-files-in-the-program.md). The crate maps names to bytes and does
//! nothing else.

use std::sync::LazyLock;

/// The policy that the page is sent with: nothing from elsewhere, no script or style in the page, and no frame around
/// it. Images may be data URLs, because the chat shows those that its user attaches.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'";

/// One file.
#[derive(Debug)]
pub struct DashboardFile {
    /// The name behind `/dashboard/`.
    pub name: &'static str,
    /// The value of `Content-Type`.
    pub content_type: &'static str,
    /// The value of `ETag`, in quotes.
    pub etag: String,
    /// The content.
    pub bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal)*) => {
        /// Every file with its content.
        const FILES: &[(&str, &[u8])] = &[$(($name, include_bytes!(concat!("../assets/", $name))),)*];
    };
}

files! {
    "index.html"
    "base.css" "layout.css" "parts.css" "chat.css"
    "icon.svg"
    "app.js" "access.js" "actions.js" "api.js" "bars.js" "chart.js" "chat.js" "chat-message.js" "clients.js" "decisions.js"
    "devices.js" "dialogs.js" "dom.js" "events.js" "figures.js" "format.js" "history.js" "images.js" "leases.js" "markdown.js"
    "models.js" "overview.js" "plan.js" "poll.js" "queue.js" "router.js" "slots.js" "sse.js" "store.js" "tasks.js" "theme.js"
}

static ALL: LazyLock<Vec<DashboardFile>> = LazyLock::new(|| {
    let file = |&(name, bytes): &(&'static str, &'static [u8])| DashboardFile {
        name,
        content_type: content_type(name),
        etag: format!("\"{:016x}\"", fnv_1a(bytes)),
        bytes,
    };
    FILES.iter().map(file).collect()
});

/// The page.
pub fn page() -> &'static DashboardFile {
    &ALL[0]
}

/// The file of this name.
pub fn file(name: &str) -> Option<&'static DashboardFile> {
    ALL.iter().find(|file| file.name == name)
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.') {
        Some((_, "html")) => "text/html; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "js")) => "text/javascript; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// A digest that differs between versions of a file. It is no protection: the files are public.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
