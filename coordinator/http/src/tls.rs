//! HTTPS: the certificate of the server, which may change while connections are open, and the choice between TLS and
//! plain HTTP by the first byte of a connection.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use model_boss_protocol::{ApiError, ErrorCode, ErrorSource};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// The first byte of a TLS connection: a record with a handshake (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 0x16;
/// The time that a client of plain HTTP gets to read that it must use TLS.
const REFUSAL_LINGER: Duration = Duration::from_millis(200);

/// A connection that carries HTTP, in TLS or as it is.
pub(crate) type HttpStream = Either<TlsStream<TcpStream>, TcpStream>;

/// The certificate and private key of the server, for all connections that begin from now on.
#[derive(Clone)]
pub struct ServerTls(Arc<RwLock<Arc<ServerConfig>>>);

/// Why a certificate and a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The first file is no list of certificates.
    #[error("the certificate is no PEM file of certificates: {0}")]
    Certificate(pem::Error),
    /// The second file is no private key.
    #[error("the key is no PEM file of a private key without a password: {0}")]
    Key(pem::Error),
    /// The key does not belong to the certificate, or is of an unknown kind.
    #[error("the key and the certificate cannot be used together: {0}")]
    Pair(rustls::Error),
}

impl ServerTls {
    /// The server's TLS with a chain of certificates and its key, each a PEM file's content.
    pub fn new(certificates: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(RwLock::new(configured(certificates, key)?))))
    }

    /// Takes another certificate. Connections that are open keep the one before.
    pub fn replace(&self, certificates: &[u8], key: &[u8]) -> Result<(), TlsError> {
        let next = configured(certificates, key)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The connection's HTTP. Plain HTTP is for programs of this machine, such as model-boss's own commands; others are
    /// told to use TLS. `None` where the client says nothing in time, or cannot agree.
    pub(crate) async fn agree(&self, stream: TcpStream, is_local: bool, patience: Duration) -> Option<HttpStream> {
        let mut first = [0];
        match timeout(patience, stream.peek(&mut first)).await {
            Ok(Ok(1..)) if first[0] == HANDSHAKE => {
                let agreed = timeout(patience, TlsAcceptor::from(self.current()).accept(stream)).await;
                let agreed = agreed.ok()?.inspect_err(|error| tracing::debug!(%error, "no TLS was agreed")).ok()?;
                Some(Either::Left(agreed))
            }
            Ok(Ok(1..)) if is_local => Some(Either::Right(stream)),
            Ok(Ok(1..)) => {
                refuse_plain(stream).await;
                None
            }
            _ => None,
        }
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls")
    }
}

fn configured(certificates: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>().map_err(TlsError::Certificate)?;
    if chain.is_empty() {
        return Err(TlsError::Certificate(pem::Error::NoItemsFound));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(TlsError::Key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config =
        versions.map_err(TlsError::Pair)?.with_no_client_auth().with_single_cert(chain, key).map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Answers a client of another machine that sends plain HTTP, perhaps with a key in it.
async fn refuse_plain(mut stream: TcpStream) {
    let error =
        ApiError::new(ErrorCode::InvalidRequest, "this coordinator speaks TLS: write https:// in place of http://");
    let body = error.body(ErrorSource::Coordinator).to_json();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n\
         {body}",
        body.len()
    );
    let _ = timeout(REFUSAL_LINGER, stream.write_all(answer.as_bytes())).await;
    let _ = timeout(REFUSAL_LINGER, stream.shutdown()).await;
    // Closing a socket with unread bytes resets the connection, and the client loses the answer.
    let mut scrap = [0; 4_096];
    let read = async { while matches!(tokio::io::AsyncReadExt::read(&mut stream, &mut scrap).await, Ok(1..)) {} };
    let _ = timeout(REFUSAL_LINGER, read).await;
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsConnector;

    use super::*;

    /// A certificate for this name, and its key, as PEM.
    fn pair(name: &str) -> (String, String) {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([name.to_owned()]).unwrap();
        (cert.pem(), signing_key.serialize_pem())
    }

    /// A client that trusts this certificate.
    fn trusting(certificate: &str) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        TlsConnector::from(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
    }

    #[tokio::test]
    async fn op_5_the_first_byte_tells_tls_from_plain_http() {
        let (certificate, key) = pair("boss.lan");
        let tls = ServerTls::new(certificate.as_bytes(), key.as_bytes()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tls.clone();
        let server = tokio::spawn(async move {
            let mut heard = Vec::new();
            for is_local in [true, true, false, true] {
                let (stream, _) = listener.accept().await.unwrap();
                let Some(mut stream) = serving.agree(stream, is_local, Duration::from_secs(5)).await else {
                    heard.push("nothing".to_owned());
                    continue;
                };
                let mut word = [0; 4];
                stream.read_exact(&mut word).await.unwrap();
                heard.push(format!("{} {}", String::from_utf8_lossy(&word), matches!(stream, Either::Left(_))));
            }
            heard
        });
        let name = ServerName::try_from("boss.lan").unwrap();
        let connect = async || TcpStream::connect(address).await.unwrap();
        let mut secret = trusting(&certificate).connect(name.clone(), connect().await).await.unwrap();
        secret.write_all(b"GET ").await.unwrap();
        connect().await.write_all(b"GET ").await.unwrap();
        let mut outside = connect().await;
        outside.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut told = String::new();
        outside.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 400") && told.contains("https://"), "{told}");
        // Another certificate counts from the next connection on; one without its key changes nothing.
        let (next, next_key) = pair("boss.lan");
        assert!(matches!(tls.replace(next.as_bytes(), key.as_bytes()), Err(TlsError::Pair(_))));
        tls.replace(next.as_bytes(), next_key.as_bytes()).unwrap();
        let mut renewed = trusting(&next).connect(name, connect().await).await.unwrap();
        renewed.write_all(b"PUT ").await.unwrap();
        assert_eq!(server.await.unwrap(), ["GET  true", "GET  false", "nothing", "PUT  true"]);
    }

    #[test]
    fn op_5_files_that_do_not_do_are_told_apart() {
        let (certificate, key) = pair("boss.lan");
        let told = |certificate: &str, key: &str| {
            ServerTls::new(certificate.as_bytes(), key.as_bytes()).unwrap_err().to_string()
        };
        assert!(told("", &key).starts_with("the certificate is no PEM"));
        assert!(told(&key, &key).starts_with("the certificate is no PEM"));
        assert!(told(&certificate, &certificate).starts_with("the key is no PEM"));
        assert!(told(&certificate, &pair("boss.lan").1).starts_with("the key and the certificate"));
    }
}
