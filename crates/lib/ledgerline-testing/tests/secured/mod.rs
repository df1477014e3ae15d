//! The command function of tanks, which reaches emulated services by TLS only.

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use ledgerline_sam::template::Source;
use ledgerline_testing::{table, workspace};
use tempfile::NamedTempFile;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivateKeyDer},
};

/// The time in which no handshake completes before a client gives up, and the duration of each
/// later handshake.
pub(crate) type Slowness = (Duration, Duration);

/// A service behind TLS.
pub(crate) struct Tls {
    url: String,
    /// The certificate of the authority that signed the service's certificate.
    authority: NamedTempFile,
}

/// Puts TLS before the service at this URL.
pub(crate) async fn behind_tls(url: &str, (stuck, handshake): Slowness) -> anyhow::Result<Tls> {
    let key = rcgen::KeyPair::generate()?;
    let mut authority = rcgen::CertificateParams::new([])?;
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(authority, key)?;
    let key = rcgen::KeyPair::generate()?;
    let certificate =
        rcgen::CertificateParams::new(["localhost".to_owned()])?.signed_by(&key, &authority)?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let address = url.trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        let began = Instant::now();
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            let address = address.clone();
            let wait = if began.elapsed() < stuck { Duration::from_secs(3) } else { handshake };
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                let mut client = acceptor.accept(client).await?;
                let mut service = TcpStream::connect(address).await?;
                copy_bidirectional(&mut client, &mut service).await
            });
        }
    });
    let file = NamedTempFile::new()?;
    fs::write(file.path(), authority.pem())?;
    Ok(Tls { url: format!("https://localhost:{port}"), authority: file })
}

/// Returns the environment of the function from the template, with this service in place of AWS.
/// The function trusts the authority that signed the service's certificate, or the certificate
/// `trusted` in its place.
pub(crate) fn environment(
    tls: &Tls,
    trusted: Option<&str>,
) -> anyhow::Result<BTreeMap<String, String>> {
    if let Some(trusted) = trusted {
        fs::write(tls.authority.path(), trusted)?;
    }
    let template = workspace().join("template.yaml");
    let source = Source::parse(&fs::read_to_string(&template)?, &template)?;
    let template = source.template(&BTreeMap::default(), "http://127.0.0.1")?;
    let functions = template.functions.into_iter();
    let mut of = functions.filter(|function| function.binary == "tank-commands");
    let mut environment = of.next().map(|function| function.environment).unwrap_or_default();
    for (name, value) in [
        ("COMMITS_TABLE", table("CommitsTable")),
        ("REQUESTS_TABLE", table("RequestsTable")),
        ("AWS_ENDPOINT_URL", tls.url.clone()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "local".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "local".to_owned()),
        ("SSL_CERT_FILE", tls.authority.path().to_string_lossy().into_owned()),
    ] {
        environment.insert(name.to_owned(), value);
    }
    Ok(environment)
}

/// Returns a sample event of the function.
pub(crate) fn sample(name: &str) -> anyhow::Result<Vec<u8>> {
    Ok(fs::read(workspace().join(format!("events/tank-commands/{name}.json")))?)
}
