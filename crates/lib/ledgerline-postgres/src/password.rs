//! IAM authentication tokens, as passwords of connections: signed requests, which the database
//! sends to IAM.
//!
//! Source: the user guide of RDS, "Connecting to your DB instance using IAM authentication".

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use aws_credential_types::{Credentials, provider::ProvideCredentials};
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign},
    sign::v4,
};
use aws_types::SdkConfig;
use futures::{FutureExt, future::BoxFuture};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The time for which a password opens connections. An open connection stays.
const VALID: Duration = Duration::from_secs(900);

/// The characters that a query encodes: all but the unreserved ones of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Makes the password of a new connection.
pub(crate) type MakePassword =
    Arc<dyn Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

/// The user and the server of a password.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: String,
}

/// Returns the signer of passwords for new connections.
///
/// # Errors
/// When the configuration has no region or no credentials.
pub(crate) fn make_passwords(sdk: &SdkConfig, login: Login) -> Result<MakePassword, &'static str> {
    let region = sdk.region().ok_or("no region is set")?.to_string();
    let provider = sdk.credentials_provider().ok_or("there are no credentials")?;
    Ok(Arc::new(move || {
        let region = region.clone();
        let provider = provider.clone();
        let login = login.clone();
        async move {
            let credentials =
                provider.provide_credentials().await.map_err(|error| error.to_string())?;
            sign_password(credentials, &region, &login, SystemTime::now())
        }
        .boxed()
    }))
}

fn encode(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, ENCODED)
}

fn sign_password(
    credentials: Credentials,
    region: &str,
    Login { host, port, user }: &Login,
    now: SystemTime,
) -> Result<String, String> {
    let mut settings = SigningSettings::default();
    settings.expires_in = Some(VALID);
    settings.signature_location = SignatureLocation::QueryParams;
    let identity = credentials.into();
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("rds-db")
        .time(now)
        .settings(settings)
        .build()
        .map_err(|error| error.to_string())?;
    let address = format!("{host}:{port}/?Action=connect&DBUser={}", encode(user));
    let url = format!("https://{address}");
    let request = SignableRequest::new("GET", &url, std::iter::empty(), SignableBody::Bytes(&[]));
    let request = request.map_err(|error| error.to_string())?;
    let signed = sign(request, &parameters.into()).map_err(|error| error.to_string())?;
    let (instructions, _) = signed.into_parts();
    let signature =
        instructions.params().iter().map(|(name, value)| format!("&{name}={}", encode(value)));
    Ok(address + &signature.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_names_user_and_server_and_is_valid_for_a_quarter_of_an_hour() {
        let credentials =
            Credentials::new("AKIDEXAMPLE", "secret", Some("token/+".into()), None, "test");
        let login = Login { host: "db.example.com".into(), port: 5432, user: "a b".into() };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_253_400);
        let password = sign_password(credentials, "eu-central-1", &login, now).unwrap();
        assert!(
            password.starts_with("db.example.com:5432/?Action=connect&DBUser=a%20b&"),
            "{password}"
        );
        for part in [
            "X-Amz-Algorithm=AWS4-HMAC-SHA256",
            "X-Amz-Credential=AKIDEXAMPLE%2F20261121%2Feu-central-1%2Frds-db%2Faws4_request",
            "X-Amz-Expires=900",
            "X-Amz-SignedHeaders=host",
            "X-Amz-Security-Token=token%2F%2B",
            "X-Amz-Signature=",
        ] {
            assert!(password.contains(part), "{part}: {password}");
        }
        assert!(!password.contains("secret"));
    }
}
