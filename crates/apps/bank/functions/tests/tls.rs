//! A function and its services with TLS between them, as on AWS: elsewhere in the tests there is none.
//!
//! `ACCOUNT_COMMANDS` names another build of the function, such as a script that runs that for arm64:
//! `exec qemu-aarch64 -L /usr/aarch64-linux-gnu target/aarch64-unknown-linux-gnu/debug/account-commands`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use ledgerline_local::{
    build,
    template::Source,
    testing::{dynamodb, invoked, table, workspace},
};
use serde_json::Value;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivateKeyDer},
};

/// For how long no handshake ends in time, and how long each takes after that.
type Slowness = (Duration, Duration);

/// The answer to the sample that opens an account, of an instance that reaches its tables by TLS only, and trusts `trusted`, or the authority that
/// signed the services' certificate.
async fn opened((stuck, handshake): Slowness, trusted: Option<&str>) -> anyhow::Result<Value> {
    let services = dynamodb(&["CommitsTable", "RequestsTable"]).await;
    let address = services.url.trim_start_matches("http://").to_owned();

    let key = rcgen::KeyPair::generate()?;
    let mut authority = rcgen::CertificateParams::new([])?;
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(authority, key)?;
    let key = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(["localhost".to_owned()])?.signed_by(&key, &authority)?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        let began = Instant::now();
        while let Ok((client, _)) = listener.accept().await {
            let (acceptor, address) = (acceptor.clone(), address.clone());
            let wait = if began.elapsed() < stuck { Duration::from_secs(3) } else { handshake };
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                let mut client = acceptor.accept(client).await?;
                let mut service = TcpStream::connect(address).await?;
                copy_bidirectional(&mut client, &mut service).await
            });
        }
    });

    let folder = tempfile::tempdir()?;
    let authorities = folder.path().join("authorities.pem");
    fs::write(&authorities, trusted.map_or_else(|| authority.pem(), ToOwned::to_owned))?;
    let root = workspace();
    let template = root.join("template.yaml");
    let source = Source::parse(&fs::read_to_string(&template)?, &template)?;
    let template = source.template(&BTreeMap::default(), "http://127.0.0.1")?;
    let function =
        template.functions.into_iter().find(|function| function.binary == "account-commands").unwrap();
    let mut environment = function.environment;
    for (name, value) in [
        ("COMMITS_TABLE", table("CommitsTable")),
        ("REQUESTS_TABLE", table("RequestsTable")),
        ("AWS_ENDPOINT_URL", format!("https://localhost:{port}")),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "local".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "local".to_owned()),
        ("SSL_CERT_FILE", authorities.to_str().unwrap().to_owned()),
    ] {
        environment.insert(name.to_owned(), value);
    }
    let program = match env::var_os("ACCOUNT_COMMANDS") {
        Some(program) => program.into(),
        None => build::build(&root, &["account-commands"])?.remove("account-commands").unwrap(),
    };
    let sample = fs::read(Path::new(&root).join("events/account-commands/open.json"))?;
    invoked(&program, environment, sample).await
}

const FAST: Duration = Duration::ZERO;

#[tokio::test]
async fn a_command_is_stored_over_tls() {
    let answer = opened((FAST, FAST), None).await.unwrap();
    assert_eq!(answer["statusCode"], 201, "{answer}");
}

/// All tries of the first read fail: the function starts all the same, and the command is stored when handshakes end again.
#[tokio::test]
async fn slow_handshakes_end_no_start() {
    let answer = opened((Duration::from_millis(4_500), Duration::from_millis(500)), None).await.unwrap();
    assert_eq!(answer["statusCode"], 201, "{answer}");
}

#[tokio::test]
async fn a_service_that_nobody_vouches_for_gets_nothing() {
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    let answer = opened((FAST, FAST), Some(&stranger)).await.unwrap();
    assert_eq!(answer["statusCode"], 503, "{answer}");
}
