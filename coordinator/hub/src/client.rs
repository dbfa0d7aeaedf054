//! Requests to a hub over HTTP. Redirects are followed here and not by the library: the token goes to the hub's own
//! origin alone, and the first answer has the file's identity.

use std::ops::Range;
use std::time::Duration;

use model_boss_protocol::{HubRepo, chain, printable_line};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_LENGTH, ETAG, HeaderMap, HeaderName, LOCATION, RANGE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response, StatusCode, Url};

use super::digest::FileChecksum;
use super::error::{HubError, TokenUse};
use super::listing::{FileIdentity, RevisionListing};
use super::settings::{HubSettings, HubToken};

/// The longest time for a connection to come about, and for the next bytes of an answer.
const CONNECT: Duration = Duration::from_secs(15);
const STALL: Duration = Duration::from_secs(30);
/// The most redirects of one request.
const REDIRECTS: usize = 10;
/// The largest list of files in bytes, and the largest error that is read.
const MAX_LISTING: usize = 64 << 20;
const MAX_ERROR: usize = 4 << 10;
/// The longest wait that a server may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
const ERROR_MESSAGE: HeaderName = HeaderName::from_static("x-error-message");

/// Characters of a path that are not escaped.
const PATH: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
/// The same for one part of a path.
const PART: AsciiSet = PATH.add(b'/');

/// A client of one hub. It belongs to the runtime that made it.
pub(crate) struct HubClient {
    http: Client,
    endpoint: Url,
    token: Option<HubToken>,
}

/// Why a request has no usable answer.
#[derive(Debug)]
pub(crate) enum FetchTrouble {
    /// Another attempt would fail, too.
    Lasting(HubError),
    /// Another attempt may succeed, after this time if the server named one.
    Passing { why: String, after: Option<Duration> },
}

/// The subject of a request, for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestSubject<'a> {
    Revision(&'a HubRepo, &'a str),
    File(&'a HubRepo, &'a str),
}

/// An answer, the address that gave it, and the identity in the hub's own answer.
pub(crate) struct OpenedFile {
    pub(crate) response: Response,
    pub(crate) url: Url,
    /// The checksum that the hub itself named.
    pub(crate) checksum: Option<FileChecksum>,
}

impl HubClient {
    pub(crate) fn new(settings: &HubSettings) -> Result<Self, HubError> {
        let endpoint = Url::parse(&settings.endpoint).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let endpoint = endpoint.filter(|url| url.has_host() && url.query().is_none() && url.username().is_empty());
        let endpoint = endpoint.ok_or_else(|| HubError::Endpoint(settings.endpoint.clone()))?;
        // Installing a second provider fails, and the first is the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            let agent = concat!("model-boss/", env!("CARGO_PKG_VERSION"));
            Client::builder().user_agent(agent).redirect(Policy::none()).connect_timeout(CONNECT).read_timeout(STALL)
        };
        let built = builder().build();
        let built = match built {
            // A hub without TLS needs no certificates.
            Err(_) if endpoint.scheme() == "http" => builder().tls_certs_only([]).build(),
            built => built,
        };
        let host = host(&endpoint);
        let http = built.map_err(|error| HubError::Unreachable { host, why: chain(&error.without_url()) })?;
        Ok(Self { http, endpoint, token: settings.token.clone() })
    }

    fn address(&self, path: &str) -> Result<Url, HubError> {
        let text = format!("{}/{path}", self.endpoint.as_str().trim_end_matches('/'));
        Url::parse(&text).map_err(|_| HubError::Endpoint(self.endpoint.to_string()))
    }

    /// The address of a file.
    pub(crate) fn file(&self, repo: &HubRepo, commit: &str, path: &str) -> Result<Url, HubError> {
        self.address(&format!("{repo}/resolve/{commit}/{}", utf8_percent_encode(path, &PATH)))
    }

    /// The files of a revision.
    pub(crate) async fn listing(&self, repo: &HubRepo, revision: &str) -> Result<RevisionListing, FetchTrouble> {
        let subject = RequestSubject::Revision(repo, revision);
        let path = format!("api/models/{repo}/revision/{}?blobs=true", utf8_percent_encode(revision, &PART));
        let mut opened = self.send(Method::GET, self.address(&path)?, None, subject).await?;
        let body = read(&mut opened.response, MAX_LISTING).await?;
        RevisionListing::parse(&body).map_err(|why| FetchTrouble::Lasting(self.not_understood(subject, why)))
    }

    /// The size and checksum of a file that the listing leaves out.
    pub(crate) async fn identity(
        &self,
        repo: &HubRepo,
        commit: &str,
        path: &str,
    ) -> Result<FileIdentity, FetchTrouble> {
        let subject = RequestSubject::File(repo, path);
        let opened = self.send(Method::HEAD, self.file(repo, commit, path)?, None, subject).await?;
        let headers = opened.response.headers();
        let number = |name: HeaderName| -> Option<u64> { headers.get(name)?.to_str().ok()?.parse().ok() };
        let bytes = number(LINKED_SIZE).or_else(|| number(CONTENT_LENGTH));
        bytes.zip(opened.checksum).map(|(bytes, checksum)| FileIdentity { bytes, checksum }).ok_or_else(|| {
            FetchTrouble::Lasting(HubError::NoChecksum { endpoint: host(&self.endpoint), file: path.to_owned() })
        })
    }

    /// Opens a range of a file.
    pub(crate) async fn open(
        &self,
        url: Url,
        range: &Range<u64>,
        subject: RequestSubject<'_>,
    ) -> Result<OpenedFile, FetchTrouble> {
        self.send(Method::GET, url, Some(range), subject).await
    }

    /// Whether an address is the hub's own.
    pub(crate) fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.endpoint.origin()
    }

    async fn send(
        &self,
        method: Method,
        mut url: Url,
        range: Option<&Range<u64>>,
        subject: RequestSubject<'_>,
    ) -> Result<OpenedFile, FetchTrouble> {
        let mut checksum = None;
        for _ in 0..REDIRECTS {
            let mut request = self.http.request(method.clone(), url.clone()).header(ACCEPT_ENCODING, "identity");
            if let Some(token) = self.token.as_ref().filter(|_| self.is_own(&url)) {
                request = request.bearer_auth(token.secret());
            }
            if let Some(range) = range {
                request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
            }
            let response = request.send().await.map_err(|error| passing(&url, error))?;
            let (status, headers) = (response.status(), response.headers());
            if self.is_own(&url) {
                checksum = checksum.or_else(|| named_checksum(headers, status));
            }
            let next = headers.get(LOCATION).filter(|_| status.is_redirection()).and_then(|next| next.to_str().ok());
            let Some(next) = next else {
                if status.is_success() {
                    return Ok(OpenedFile { response, url, checksum });
                }
                return Err(self.refused(&url, response, subject).await);
            };
            // Without the body of a file that has another host, its size and checksum are known.
            let next = url.join(next).map_err(|error| self.not_understood(subject, error.to_string()))?;
            if method == Method::HEAD && checksum.is_some() && !self.is_own(&next) {
                return Ok(OpenedFile { response, url, checksum });
            }
            url = next;
        }
        Err(FetchTrouble::Lasting(self.not_understood(subject, format!("it redirects more than {REDIRECTS} times"))))
    }

    /// The error of an answer that is no success.
    async fn refused(&self, url: &Url, mut response: Response, subject: RequestSubject<'_>) -> FetchTrouble {
        let (status, headers) = (response.status(), response.headers());
        let code = headers.get(ERROR_CODE).and_then(|code| code.to_str().ok()).unwrap_or_default().to_owned();
        let after = headers.get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.trim().parse().ok());
        let after = after.map(|seconds| Duration::from_secs(seconds).min(LONGEST_WAIT));
        let said = headers.get(ERROR_MESSAGE).and_then(|words| words.to_str().ok()).map(str::to_owned);
        let is_passing =
            status.is_server_error() || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
        if is_passing || !self.is_own(url) {
            // Addresses of content networks expire.
            return FetchTrouble::Passing { why: format!("{} answered {status}", host(url)), after };
        }
        let token = if self.token.is_some() { TokenUse::Sent } else { TokenUse::Absent };
        let (repo, endpoint) = (subject.repo().clone(), host(&self.endpoint));
        let gated = |repo: HubRepo| {
            let page = format!("{}/{repo}", self.endpoint.as_str().trim_end_matches('/'));
            HubError::Gated { repo, page, token }
        };
        FetchTrouble::Lasting(match (status.as_u16(), code.as_str(), subject) {
            (401 | 403, "GatedRepo", _) | (403, _, _) => gated(repo),
            (401, code, RequestSubject::File(..)) if code != "RepoNotFound" => gated(repo),
            (401, _, _) => HubError::NoRepository { repo, endpoint, token },
            (404, "RevisionNotFound", RequestSubject::Revision(_, revision)) => {
                HubError::NoRevision { repo, revision: revision.to_owned() }
            }
            (404, "RepoNotFound", _) | (404, _, RequestSubject::Revision(..)) => {
                HubError::NoRepository { repo, endpoint, token }
            }
            (404, _, RequestSubject::File(_, file)) => {
                HubError::NoFile { repo, file: file.to_owned(), there: "other files".to_owned() }
            }
            (416, _, RequestSubject::File(_, file)) => HubError::Changed { repo, file: file.to_owned() },
            (status, _, _) => {
                let words = match said {
                    Some(said) => said,
                    None => String::from_utf8_lossy(&read(&mut response, MAX_ERROR).await.unwrap_or_default()).into(),
                };
                let words = printable_line(words.trim().as_bytes(), false);
                let message = if words.trim().is_empty() { String::new() } else { format!(": {}", words.trim()) };
                HubError::Status { host: endpoint, status, what: subject.to_string(), message }
            }
        })
    }

    fn not_understood(&self, subject: RequestSubject<'_>, why: String) -> HubError {
        HubError::Answer { host: host(&self.endpoint), what: subject.to_string(), why }
    }
}

impl RequestSubject<'_> {
    fn repo(&self) -> &HubRepo {
        match self {
            Self::Revision(repo, _) | Self::File(repo, _) => repo,
        }
    }
}

impl std::fmt::Display for RequestSubject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Revision(repo, revision) => write!(f, "{repo} at '{revision}'"),
            Self::File(repo, file) => write!(f, "{file} of {repo}"),
        }
    }
}

impl From<HubError> for FetchTrouble {
    fn from(error: HubError) -> Self {
        Self::Lasting(error)
    }
}

/// The checksum that the hub's own answer names: that of a large file, or of the file that it sends itself.
fn named_checksum(headers: &HeaderMap, status: StatusCode) -> Option<FileChecksum> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let own = || text(ETAG).filter(|_| status.is_success());
    FileChecksum::of(text(LINKED_ETAG).or_else(own)?.trim_start_matches("W/"))
}

/// A failed connection. The address is left out, since it may be signed.
pub(crate) fn passing(url: &Url, error: reqwest::Error) -> FetchTrouble {
    FetchTrouble::Passing { why: format!("{}: {}", host(url), chain(&error.without_url())), after: None }
}

/// The host of an address with its port, without the rest.
pub(crate) fn host(url: &Url) -> String {
    let name = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"))
}

/// Reads a body of at most `most` bytes.
async fn read(response: &mut Response, most: usize) -> Result<Vec<u8>, FetchTrouble> {
    let mut body = Vec::new();
    let url = response.url().clone();
    while let Some(piece) = response.chunk().await.map_err(|error| passing(&url, error))? {
        body.extend_from_slice(&piece);
        if body.len() > most {
            body.truncate(most);
            break;
        }
    }
    Ok(body)
}
