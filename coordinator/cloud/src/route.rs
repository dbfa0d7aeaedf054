//! Connections to providers: direct, or through the proxy that `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`
//! name. An https request goes through a tunnel (`CONNECT`), in which the proxy sees only the destination; an http
//! request is sent to the proxy itself. A proxy is never used for this machine itself.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use model_boss_config::is_loopback;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::Service;

/// The longest time to connect, with a tunnel where one is needed.
const CONNECT: Duration = Duration::from_secs(30);
/// The idle time after which TCP keep-alive probes a connection, and closes it if the other end does not answer. The
/// probes distinguish models that think for minutes from machines that were switched off.
const PROBE: Duration = Duration::from_secs(60);
const PROBE_AGAIN: Duration = Duration::from_secs(15);
/// The variables that name proxies, as curl reads them; of each group, the first that is set counts.
const VARIABLES: [[&str; 2]; 3] =
    [["HTTPS_PROXY", "https_proxy"], ["HTTP_PROXY", "http_proxy"], ["ALL_PROXY", "all_proxy"]];

type RouteFailure = Box<dyn std::error::Error + Send + Sync>;

/// The proxy for each address.
#[derive(Clone, Debug)]
pub(super) struct Proxies(Arc<Matcher>);

impl Proxies {
    /// The proxies of the environment. A value that is no valid address is logged and not used.
    pub(super) fn of_environment() -> Self {
        for names in VARIABLES {
            let set = names.iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
            if let Some((name, value)) = set.filter(|(_, value)| !value.is_empty())
                && !is_proxy(&value)
            {
                tracing::warn!("{name} is not the address of a proxy (http://HOST:PORT) and is not used");
            }
        }
        Self(Arc::new(Matcher::from_env()))
    }

    /// The proxy that requests to this address go through.
    fn to(&self, address: &Uri) -> Option<Intercept> {
        if address.host().is_some_and(is_loopback) { None } else { self.0.intercept(address) }
    }

    /// The proxy's credentials, which each http request has. A tunnel sends them once, when it is made.
    pub(super) fn authorization(&self, address: &Uri) -> Option<HeaderValue> {
        let plain = address.scheme_str() == Some("http");
        plain.then(|| self.to(address)).flatten().and_then(|proxy| proxy.basic_auth().cloned())
    }
}

fn is_proxy(value: &str) -> bool {
    Matcher::builder().all(value.to_owned()).build().intercept(&Uri::from_static("https://provider.example")).is_some()
}

/// Connects to providers. TLS with the provider itself is added on top.
#[derive(Clone)]
pub(super) struct Route {
    proxies: Proxies,
    /// Connects without TLS.
    straight: HttpConnector,
    /// Connects with TLS to proxies whose own address is https.
    to_proxy: HttpsConnector<HttpConnector>,
}

impl Route {
    /// The connector; `tls` holds the trusted certificates.
    pub(crate) fn new(proxies: Proxies, tls: Arc<rustls::ClientConfig>) -> Self {
        let mut straight = HttpConnector::new();
        straight.enforce_http(false);
        straight.set_nodelay(true);
        straight.set_connect_timeout(Some(CONNECT));
        straight.set_keepalive(Some(PROBE));
        straight.set_keepalive_interval(Some(PROBE_AGAIN));
        let to_proxy = HttpsConnector::from((straight.clone(), tls));
        Self { proxies, straight, to_proxy }
    }
}

impl Service<Uri> for Route {
    type Response = Hop;
    type Error = RouteFailure;
    type Future = Pin<Box<dyn Future<Output = Result<Hop, RouteFailure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RouteFailure>> {
        self.straight.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let Some(proxy) = self.proxies.to(&address) else {
            let connecting = self.straight.call(address);
            return Box::pin(
                async move { Ok(Hop { stream: MaybeHttpsStream::Http(connecting.await?), to_proxy: false }) },
            );
        };
        let at = proxy.uri().clone();
        if !matches!(at.scheme_str(), Some("http" | "https")) {
            let scheme = at.scheme_str().unwrap_or_default().to_owned();
            return Box::pin(async move { Err(format!("proxies of the kind {scheme} are not spoken to").into()) });
        }
        if address.scheme_str() == Some("http") {
            let connecting = self.to_proxy.call(at);
            return Box::pin(async move {
                let stream = timeout(CONNECT, connecting).await.map_err(|_| too_slow())??;
                Ok(Hop { stream, to_proxy: true })
            });
        }
        let mut tunnel = Tunnel::new(at, self.to_proxy.clone());
        if let Some(word) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(word.clone());
        }
        let connecting = tunnel.call(address);
        Box::pin(async move {
            let stream = timeout(CONNECT, connecting).await.map_err(|_| too_slow())??;
            Ok(Hop { stream, to_proxy: false })
        })
    }
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the proxy made no connection within {CONNECT:?}"))
}

/// A connection to a provider, or to the proxy that takes requests for it.
pub(super) struct Hop {
    stream: MaybeHttpsStream<TokioIo<TcpStream>>,
    /// Whether a proxy reads the requests, which then state the whole address.
    to_proxy: bool,
}

impl Connection for Hop {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.to_proxy)
    }
}

impl Read for Hop {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl Write for Hop {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(https: &str, http: &str, no: &str) -> Proxies {
        let matcher = Matcher::builder().https(https.to_owned()).http(http.to_owned()).no(no.to_owned());
        Proxies(Arc::new(matcher.build()))
    }

    #[test]
    fn each_address_has_its_proxy_and_this_machine_none() {
        let known = proxies("http://p:1", "http://me:word@p:2", "inner.example,10.0.0.0/8");
        let way = |address: &'static str| known.to(&Uri::from_static(address)).map(|proxy| proxy.uri().to_string());
        assert_eq!(way("https://api.example/v1").as_deref(), Some("http://p:1/"));
        assert_eq!(way("http://api.example/v1").as_deref(), Some("http://p:2/"));
        for near in [
            "https://inner.example",
            "https://x.inner.example",
            "http://10.1.2.3:80",
            "http://127.0.0.1:1",
            "http://[::1]",
            "https://localhost",
        ] {
            assert_eq!(way(near), None, "{near}");
        }
        assert_eq!(known.authorization(&Uri::from_static("http://api.example")).unwrap(), "Basic bWU6d29yZA==");
        assert_eq!(known.authorization(&Uri::from_static("https://api.example")), None);
        assert_eq!(known.authorization(&Uri::from_static("http://10.1.2.3")), None, "no proxy, no word for it");
    }

    #[test]
    fn what_is_no_proxy_is_told_from_what_is() {
        for (value, good) in [
            ("http://proxy:3128", true),
            ("proxy:3128", true),
            ("https://me:word@proxy", true),
            ("ftp://proxy", false),
            ("not a proxy", false),
        ] {
            assert_eq!(is_proxy(value), good, "{value}");
        }
    }

    #[tokio::test]
    async fn a_kind_of_proxy_that_is_not_known_is_no_reason_to_go_straight() {
        let known = proxies("socks5://p:1", "", "");
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let mut route = Route::new(known, Arc::new(tls));
        let error = route.call(Uri::from_static("https://api.example")).await.err().unwrap();
        assert!(error.to_string().contains("socks5"), "{error}");
    }
}
