//! RC-27 with a proxy, and without certificates: connections to a provider.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use http::StatusCode;
use model_boss_tests::{Boss, Sandbox, binary};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::cloud::{KEY, Stub, message};

/// A proxy whose tunnels all lead to one place, independently of the address that a client requests.
struct TunnelProxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    /// The first bytes of each tunnel.
    through: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl TunnelProxy {
    async fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Self { address: listener.local_addr().unwrap(), asked: Arc::default(), through: Arc::default() };
        let (asked, through) = (Arc::clone(&proxy.asked), Arc::clone(&proxy.through));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let head = head_of(&mut stream).await;
                asked.lock().unwrap().push(head);
                _ = stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await;
                let mut bytes = vec![0; 4096];
                let count = stream.read(&mut bytes).await.unwrap_or(0);
                bytes.truncate(count);
                through.lock().unwrap().push(bytes);
            }
        });
        proxy
    }
}

async fn head_of(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

async fn start(sandbox: &Sandbox, variables: &[(&str, &str)]) -> Boss {
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    for names in
        ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "all_proxy", "no_proxy"]
    {
        launch.command.env_remove(names);
    }
    launch.command.env("ANTHROPIC_API_KEY", KEY).envs(variables.iter().copied());
    launch.start().await
}

#[tokio::test]
async fn rc_27_https_goes_through_a_tunnel_and_the_proxy_sees_no_key() {
    let proxy = TunnelProxy::start("200 Connection established").await;
    let sandbox = Sandbox::new().with_config("[providers.claude]\nbase_url = \"https://claude.example:4443/v1\"");
    let boss = start(&sandbox, &[("HTTPS_PROXY", &format!("http://me:word@{}", proxy.address))]).await;
    // No server answers through the tunnel: the test checks the requested address and the first bytes.
    let answer = boss.chat("claude:opus", "?").await;
    assert_eq!((answer.status, answer.error_code().as_str()), (StatusCode::BAD_GATEWAY, "backend_error"), "{answer:?}");
    let asked = proxy.asked.lock().unwrap().clone();
    assert!(asked[0].starts_with("CONNECT claude.example:4443 HTTP/1.1\r\n"), "{asked:?}");
    assert!(asked[0].contains("Proxy-Authorization: Basic bWU6d29yZA==\r\n"), "{asked:?}");
    let through = proxy.through.lock().unwrap().concat();
    let has = |words: &str| through.windows(words.len()).any(|window| window == words.as_bytes());
    assert!(through.starts_with(&[0x16, 3]), "a TLS handshake begins: {through:?}");
    assert!(has("claude.example") && !has(KEY), "it is for the provider, not for the proxy");
    let printed = boss.output().text();
    assert!(!printed.contains("word@") && !printed.contains("bWU6d29yZA"), "{printed}");
    boss.finish().await;

    let proxy = TunnelProxy::start("407 Proxy Authentication Required").await;
    let boss = start(&sandbox, &[("https_proxy", &format!("http://{}", proxy.address))]).await;
    assert_eq!(boss.chat("claude:opus", "?").await.error_code(), "backend_error");
    boss.output().line("says what the proxy wants", |line| line.contains("proxy authorization required")).await;
    boss.finish().await;
}

#[tokio::test]
async fn rc_27_http_is_handed_to_the_proxy_and_some_places_are_reached_without() {
    // A request to a proxy states the whole address, so any server that answers all paths can be the proxy.
    let proxy = Stub::start("application/json", message("by proxy")).await;
    let far = "[providers.far]\nkind = \"anthropic\"\nbase_url = \"http://far.example\"\n";
    let near = Stub::start("application/json", message("straight")).await;
    let config = format!("{far}[providers.claude]\nbase_url = \"http://{}\"\n", near.address);
    let sandbox = Sandbox::new().with_config(&config);
    let through = format!("http://me:word@{}", proxy.address);
    let boss = start(&sandbox, &[("ALL_PROXY", through.as_str())]).await;
    let said = async |boss: &Boss, model: &str| {
        let answer = boss.chat(model, "?").await;
        answer.json()["choices"][0]["message"]["content"].as_str().map(str::to_owned)
    };
    assert_eq!(
        said(&boss, "claude:opus").await.as_deref(),
        Some("straight"),
        "this machine is reached without a proxy"
    );
    assert_eq!(said(&boss, "far:m").await.as_deref(), Some("by proxy"));
    let asked = proxy.asked().remove(0);
    assert_eq!(asked.path, "http://far.example/v1/messages");
    assert_eq!(asked.headers["proxy-authorization"], "Basic bWU6d29yZA==");
    assert!(near.asked()[0].headers.get("proxy-authorization").is_none(), "the proxy's word is for the proxy");
    boss.finish().await;

    let boss = start(&sandbox, &[("ALL_PROXY", through.as_str()), ("NO_PROXY", "far.example")]).await;
    assert_eq!(said(&boss, "far:m").await, None, "there is no such host");
    assert_eq!(proxy.asked().len(), 1);
    boss.finish().await;

    let boss = start(&sandbox, &[("HTTP_PROXY", "gopher://x")]).await;
    boss.output().line("says what is wrong", |line| line.contains("HTTP_PROXY is not the address of a proxy")).await;
    boss.finish().await;
}

#[tokio::test]
async fn rc_27_unreadable_certificates_matter_to_https_only() {
    let stub = Stub::start("application/json", message("four")).await;
    let near = format!(
        "[providers.near]\nkind = \"anthropic\"\nbase_url = \"http://{}\"\nkey_env = \"ANTHROPIC_API_KEY\"",
        stub.address
    );
    let sandbox = Sandbox::new().with_config(&near);
    let nowhere = sandbox.path("no-such-file").display().to_string();
    let boss = start(&sandbox, &[("SSL_CERT_FILE", &nowhere), ("SSL_CERT_DIR", &nowhere)]).await;
    let answer = boss.chat("claude:opus", "?").await;
    assert_eq!(answer.error_code(), "backend_error");
    assert!(answer.error_message().contains("SSL_CERT_FILE"), "{answer:?}");
    assert_eq!(boss.chat("near:m", "?").await.status, StatusCode::OK);
    boss.finish().await;
}
