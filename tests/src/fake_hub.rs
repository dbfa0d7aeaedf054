//! A hub on loopback that speaks Hugging Face's API: lists of files with checksums, redirects of large files to a
//! second host, ranges, gated repositories. Its faults are set by the test: connections that are cut, lines that
//! stall, wrong bytes, files that change.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use serde_json::json;

use crate::boss::Launch;

/// The bytes that are sent at a time.
const CHUNK: usize = 64 << 10;
/// The size from which files are in git's large file storage.
const LARGE: usize = 1 << 20;

/// The hub, which ends with this value.
pub struct FakeHub {
    address: SocketAddr,
    shared: Arc<SharedHub>,
}

struct SharedHub {
    state: Mutex<HubState>,
    /// Wakes connections that a test holds.
    released: Condvar,
    /// The address of the second host.
    content: SocketAddr,
}

#[derive(Default)]
struct HubState {
    /// The files of each repository.
    repos: BTreeMap<String, BTreeMap<String, Arc<Vec<u8>>>>,
    behaviour: HubBehaviour,
    requests: Vec<HubRequest>,
    /// The bytes of large files that were sent.
    sent: u64,
}

/// The faults of a hub, and its rules.
#[derive(Clone, Debug, Default)]
pub struct HubBehaviour {
    /// Each answer with a large file is cut after this number of bytes.
    pub cut_after: Option<u64>,
    /// No bytes of large files are sent beyond this number in all, until the test changes it.
    pub hold_after: Option<u64>,
    /// Whether ranges are ignored.
    pub ignores_ranges: bool,
    /// Whether large files are sent by the hub itself.
    pub no_redirects: bool,
    /// Whether the last byte of large files is wrong.
    pub is_wrong: bool,
    /// Files need this token.
    pub token: Option<String>,
    /// Whether lists have neither sizes nor checksums.
    pub lists_names_only: bool,
}

/// The host of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubHost {
    /// The hub itself.
    Hub,
    /// The second host, to which large files are redirected.
    Content,
}

/// A request that was answered.
#[derive(Clone, Debug)]
pub struct HubRequest {
    /// The host that answered.
    pub host: HubHost,
    /// The method and the path.
    pub line: String,
    /// The header `Authorization`.
    pub authorization: Option<String>,
}

impl Default for FakeHub {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeHub {
    /// A hub without repositories.
    pub fn new() -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, content) = (listen(), listen());
        let address = hub.local_addr().unwrap();
        let shared = Arc::new(SharedHub {
            state: Mutex::default(),
            released: Condvar::new(),
            content: content.local_addr().unwrap(),
        });
        for (listener, host) in [(hub, HubHost::Hub), (content, HubHost::Content)] {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || shared.serve(&stream, host));
                }
            });
        }
        Self { address, shared }
    }

    /// Adds or replaces a file.
    pub fn file(&self, repo: &str, path: &str, content: impl Into<Vec<u8>>) {
        let content = Arc::new(content.into());
        self.state().repos.entry(repo.to_owned()).or_default().insert(path.to_owned(), content);
    }

    /// Adds a large file of arbitrary bytes; returns them.
    pub fn large_file(&self, repo: &str, path: &str, size: usize, seed: u64) -> Vec<u8> {
        let content = arbitrary(size, seed);
        self.file(repo, path, content.clone());
        content
    }

    /// Changes the behaviour.
    pub fn behave(&self, change: impl FnOnce(&mut HubBehaviour)) {
        change(&mut self.state().behaviour);
        self.shared.released.notify_all();
    }

    /// The bytes of large files that were sent.
    pub fn sent(&self) -> u64 {
        self.state().sent
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<HubRequest> {
        self.state().requests.clone()
    }

    /// The commit of a repository.
    pub fn commit(&self, repo: &str) -> String {
        commit(&self.state().repos[repo])
    }

    /// Lets a command use this hub, and a home folder of its own.
    pub fn set(&self, command: &mut Command, home: &std::path::Path) {
        let names = ["HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH", "HF_HOME"];
        for name in names.into_iter().chain(["XDG_CACHE_HOME", "OLLAMA_MODELS", "HTTP_PROXY", "http_proxy"]) {
            command.env_remove(name);
        }
        command.env("HF_ENDPOINT", format!("http://{}", self.address)).env("HOME", home).env("NO_PROXY", "127.0.0.1");
    }

    /// Lets a coordinator use this hub, and a home folder of its own.
    pub fn set_for(&self, launch: &mut Launch, home: &std::path::Path) {
        self.set(&mut launch.command, home);
    }

    fn state(&self) -> MutexGuard<'_, HubState> {
        self.shared.state.lock().unwrap()
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.behave(|now| *now = HubBehaviour::default());
    }
}

/// Bytes that no compression shortens, the same for each seed.
fn arbitrary(size: usize, seed: u64) -> Vec<u8> {
    let mut dice = seed.wrapping_mul(2).wrapping_add(1);
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(dice ^ (dice >> 29)).to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

fn hex(context: Context) -> String {
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(content: &[u8]) -> String {
    let mut context = Context::new(&SHA256);
    context.update(content);
    hex(context)
}

fn git_sha1(content: &[u8]) -> String {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(format!("blob {}\0", content.len()).as_bytes());
    context.update(content);
    hex(context)
}

fn checksum(content: &[u8]) -> String {
    if content.len() >= LARGE { sha256(content) } else { git_sha1(content) }
}

fn commit(files: &BTreeMap<String, Arc<Vec<u8>>>) -> String {
    let all: String = files.iter().map(|(path, content)| format!("{path} {}\n", checksum(content))).collect();
    git_sha1(all.as_bytes())
}

/// A request's head.
struct Head {
    method: String,
    target: String,
    range: Option<(u64, u64)>,
    authorization: Option<String>,
}

fn head(reader: &mut BufReader<&TcpStream>) -> Option<Head> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split(' ');
    let mut head =
        Head { method: words.next()?.to_owned(), target: words.next()?.to_owned(), range: None, authorization: None };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { return Some(head) };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => head.authorization = Some(value.to_owned()),
            "range" => {
                let (start, end) = value.strip_prefix("bytes=")?.split_once('-')?;
                head.range = Some((start.parse().ok()?, end.parse().ok()?));
            }
            _ => {}
        }
    }
}

/// An answer without a large body.
struct Plain<'a> {
    status: &'a str,
    headers: String,
    body: Vec<u8>,
}

impl<'a> Plain<'a> {
    fn of(status: &'a str, headers: impl Into<String>) -> Self {
        Self { status, headers: headers.into(), body: Vec::new() }
    }

    fn send(&self, mut stream: &TcpStream, method: &str) -> std::io::Result<()> {
        let Self { status, headers, body } = self;
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len())?;
        if method == "HEAD" { Ok(()) } else { stream.write_all(body) }
    }
}

impl SharedHub {
    /// Answers the requests of one connection.
    fn serve(&self, stream: &TcpStream, host: HubHost) {
        let mut reader = BufReader::new(stream);
        while let Some(head) = head(&mut reader) {
            let line = format!("{} {}", head.method, head.target);
            let request = HubRequest { host, line, authorization: head.authorization.clone() };
            self.state.lock().unwrap().requests.push(request);
            let answered = match host {
                HubHost::Hub => self.answer(stream, &head),
                HubHost::Content => self.content(stream, &head),
            };
            if answered.is_err() {
                // The client may have closed the connection already.
                _ = stream.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    fn answer(&self, stream: &TcpStream, head: &Head) -> std::io::Result<()> {
        let path = head.target.split('?').next().unwrap_or_default().trim_start_matches('/').to_owned();
        let (repos, behaviour) = {
            let state = self.state.lock().unwrap();
            (state.repos.clone(), state.behaviour.clone())
        };
        let repo_of = |path: &str| path.splitn(3, '/').take(2).collect::<Vec<_>>().join("/");
        if let Some(rest) = path.strip_prefix("api/models/") {
            let (repo, revision) = (repo_of(rest), rest.rsplit('/').next().unwrap_or_default());
            let Some(files) = repos.get(&repo) else {
                return Plain::of("401 Unauthorized", "X-Error-Code: RepoNotFound\r\n").send(stream, &head.method);
            };
            let commit = commit(files);
            if revision != "main" && revision != commit {
                return Plain::of("404 Not Found", "X-Error-Code: RevisionNotFound\r\n").send(stream, &head.method);
            }
            let siblings: Vec<_> = files
                .iter()
                .map(|(path, content)| match (behaviour.lists_names_only, content.len() >= LARGE) {
                    (true, _) => json!({ "rfilename": path }),
                    (false, false) => json!({ "rfilename": path, "size": content.len(), "blobId": git_sha1(content) }),
                    (false, true) => json!({
                        "rfilename": path, "size": content.len(), "blobId": git_sha1(path.as_bytes()),
                        "lfs": { "sha256": sha256(content), "size": content.len(), "pointerSize": 130 },
                    }),
                })
                .collect();
            let body = json!({ "id": repo, "sha": commit, "siblings": siblings }).to_string().into_bytes();
            return Plain { body, ..Plain::of("200 OK", "Content-Type: application/json\r\n") }
                .send(stream, &head.method);
        }
        if let Some(rest) = path.strip_prefix("api/resolve-cache/") {
            return self.small(stream, head, &repos[&repo_of(rest)][rest.splitn(3, '/').nth(2).unwrap_or_default()]);
        }
        let repo = repo_of(&path);
        let file = path.split_once("/resolve/").and_then(|(_, rest)| Some(rest.split_once('/')?.1.to_owned()));
        let content = repos.get(&repo).zip(file.as_ref()).and_then(|(files, file)| files.get(file));
        let (Some(content), Some(file)) = (content, file) else {
            return Plain::of("404 Not Found", "X-Error-Code: EntryNotFound\r\n").send(stream, &head.method);
        };
        if let Some(token) = &behaviour.token
            && head.authorization.as_deref() != Some(&format!("Bearer {token}"))
        {
            let status = if head.authorization.is_some() { "403 Forbidden" } else { "401 Unauthorized" };
            return Plain::of(status, "X-Error-Code: GatedRepo\r\n").send(stream, &head.method);
        }
        if content.len() < LARGE {
            let location = format!("Location: /api/resolve-cache/{repo}/{file}\r\nETag: \"{}\"\r\n", git_sha1(content));
            return Plain::of("307 Temporary Redirect", location).send(stream, &head.method);
        }
        let linked = format!("X-Linked-Etag: \"{}\"\r\nX-Linked-Size: {}\r\n", sha256(content), content.len());
        if behaviour.no_redirects {
            return self.large(stream, head, content, &linked);
        }
        let address = self.content;
        let location = format!("{linked}Location: http://{address}/{repo}/{file}?signature=secret\r\n");
        Plain::of("302 Found", location).send(stream, &head.method)
    }

    fn small(&self, stream: &TcpStream, head: &Head, content: &[u8]) -> std::io::Result<()> {
        let etag = format!("ETag: \"{}\"\r\n", git_sha1(content));
        let Some((start, end)) = head.range else {
            return Plain { body: content.to_vec(), ..Plain::of("200 OK", etag) }.send(stream, &head.method);
        };
        let range = format!("{etag}Content-Range: bytes {start}-{end}/{}\r\n", content.len());
        let body = content[start as usize..=end as usize].to_vec();
        Plain { body, ..Plain::of("206 Partial Content", range) }.send(stream, &head.method)
    }

    /// Answers a request to the second host.
    fn content(&self, stream: &TcpStream, head: &Head) -> std::io::Result<()> {
        let path = head.target.split('?').next().unwrap_or_default().trim_start_matches('/');
        let mut parts = path.splitn(3, '/');
        let repo = format!("{}/{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let content = Arc::clone(&self.state.lock().unwrap().repos[&repo][parts.next().unwrap_or_default()]);
        self.large(stream, head, &content, "ETag: \"of-the-second-host\"\r\n")
    }

    /// Sends a large file, with the faults that are set.
    fn large(&self, mut stream: &TcpStream, head: &Head, content: &[u8], more: &str) -> std::io::Result<()> {
        let behaviour = self.state.lock().unwrap().behaviour.clone();
        let size = content.len() as u64;
        let (start, end) = match head.range.filter(|_| !behaviour.ignores_ranges) {
            Some((start, end)) => {
                write!(stream, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{end}/{size}\r\n")?;
                (start, end + 1)
            }
            None => {
                write!(stream, "HTTP/1.1 200 OK\r\n")?;
                (0, size)
            }
        };
        write!(stream, "Content-Length: {}\r\n{more}\r\n", end - start)?;
        if head.method == "HEAD" {
            return Ok(());
        }
        let cut = behaviour.cut_after.map_or(end, |after| end.min(start + after));
        let mut at = start;
        while at < cut {
            let next = cut.min(at + CHUNK as u64);
            self.wait_for_room(next - at);
            let mut bytes = content[at as usize..next as usize].to_vec();
            if behaviour.is_wrong && next == size {
                *bytes.last_mut().unwrap() ^= 1;
            }
            stream.write_all(&bytes)?;
            at = next;
        }
        if cut < end { Err(std::io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    /// Counts bytes that are about to be sent, once the test lets them pass.
    fn wait_for_room(&self, bytes: u64) {
        let held = |state: &mut HubState| state.behaviour.hold_after.is_some_and(|most| state.sent + bytes > most);
        let mut state = self.released.wait_while(self.state.lock().unwrap(), held).unwrap();
        state.sent += bytes;
    }
}
