//! Commands that only operators may send. They go through the API like all others, so the domain
//! decides, and the log has the operator and the reason.

use anyhow::{Context, Result, bail};
use clap::Args;
use http::{Request, StatusCode, Uri};
use ledgerline::manifest::{Manifest, Scope};
use serde_json::{Value, json};

use crate::{
    DEFAULT_LOCAL, Output, Stack, WriteArgs,
    deployed::Deployed,
    deployment::Deployment,
    https,
    records::{self, Record},
};

/// The default address of the local stack's API.
const LOCAL: &str = "http://localhost:3000";

/// The options of `ledger command`.
#[derive(Debug, Args)]
pub(crate) struct CommandArgs {
    /// The method and the path: POST /transfers/5c1deb4d-…/settlements. Without them, list the
    /// commands.
    #[arg(num_args = 0..=2, value_names = ["METHOD", "PATH"])]
    request: Vec<String>,
    /// Send this JSON body. The text of --why becomes its field `reason`, unless it has one.
    #[arg(long, default_value = "{}")]
    body: String,
    /// Authenticate with this token of an operator, as `ledger login` prints it. The local stack
    /// needs none.
    #[arg(long, env = "LEDGER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Send to this address of the API. The default is the address in the stack's outputs, or the
    /// default address of the local stack.
    #[arg(long)]
    api: Option<String>,
    /// Use this Idempotency-Key. If the outcome of a command is unknown, repeat it with the key
    /// that it printed and recorded, so that it does not run twice.
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    write_args: WriteArgs,
}

/// Lists the commands, or sends one. Returns `false` if the operator declines.
pub(crate) async fn run(
    deployment: &Deployment,
    stack: &Stack,
    options: &CommandArgs,
    out: Output,
) -> Result<bool> {
    let routes = routes(deployment, stack).await?;
    let [method, path] = options.request.as_slice() else {
        if !options.request.is_empty() {
            bail!("give a method and a path; choose one of: {}", routes.join(", "));
        }
        let rows: Vec<_> = routes.iter().map(|route| json!({ "command": route })).collect();
        out.rows(&["command"], &rows);
        return Ok(true);
    };
    if !routes.iter().any(|route| has_method_and_path(route, method, path)) {
        bail!("`{method} {path}` is not an operator command; choose one of: {}", routes.join(", "));
    }
    let mut body: Value = serde_json::from_str(&options.body).context("--body is not JSON")?;
    let Some(fields) = body.as_object_mut() else { bail!("--body is not a JSON object") };
    fields.entry("reason").or_insert_with(|| options.write_args.why().into());
    if !options.write_args.write {
        out.rows(
            &["method", "path", "body"],
            &[json!({ "method": method, "path": path, "body": body })],
        );
        out.note("\nnothing was sent: to send the request, give --write and --why");
        return Ok(true);
    }
    if !options.write_args.confirm(&format!("send {method} {path} {body}?"))? {
        return Ok(false);
    }
    let api = api_address(deployment, stack, options).await?;
    let url: Uri =
        format!("{}{path}", api.trim_end_matches('/')).parse().context("--api is not a URL")?;
    if options.token.is_some() {
        https::require_private(&url)?;
    }
    // The key is printed and recorded first, so that no command runs without a record, and each can
    // be repeated.
    let key = options.key.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    eprintln!("The Idempotency-Key of the command is {key}");
    let table = records::table(deployment)?;
    let what = format!("{method} {path}");
    let why = options.write_args.why();
    let detail = json!({ "key": key, "body": body });
    records::store(deployment, table, Record { kind: "command", what, why, detail }).await?;
    let sent = send(method, &url, &body, &key, options.token.as_deref()).await;
    let (status, response) = sent.and_then(require_outcome).with_context(|| {
        format!(
            "the outcome of the command is unknown: repeat it with the same --why and with \
             --key {key}, so that it does not run twice"
        )
    })?;
    if !status.is_success() {
        bail!("the API refused the command with {status}: {response}");
    }
    out.rows(&["status", "answer"], &[json!({ "status": status.as_u16(), "answer": response })]);
    Ok(true)
}

/// Returns a response that says whether the command ran. A failure of the server, a throttled
/// request and a lost race do not say it: the same command may still succeed.
fn require_outcome((status, response): (StatusCode, Value)) -> Result<(StatusCode, Value)> {
    // The type ends with the code, in kebab case.
    let is_separator = |character: char| !character.is_ascii_alphanumeric() && character != '-';
    let code = response["type"].as_str().and_then(|kind| kind.rsplit(is_separator).next());
    let is_lost_race = status == StatusCode::CONFLICT && code == Some("conflict");
    let is_refusal = status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS;
    if !status.is_success() && (!is_refusal || is_lost_race) {
        bail!("the API answered {status}: {response}");
    }
    Ok((status, response))
}

/// Returns the address of the API.
async fn api_address(
    deployment: &Deployment,
    stack: &Stack,
    options: &CommandArgs,
) -> Result<String> {
    match &options.api {
        Some(api) => Ok(api.clone()),
        None if stack.local.as_deref() == Some(DEFAULT_LOCAL) => Ok(LOCAL.to_owned()),
        None if deployment.is_local => {
            bail!("the address of this local stack's API is not known: give --api")
        }
        None => deployment.output("ApiUrl").await,
    }
}

/// Sends the request. Returns the status and the body of the response.
async fn send(
    method: &str,
    url: &Uri,
    body: &Value,
    key: &str,
    token: Option<&str>,
) -> Result<(StatusCode, Value)> {
    let request = Request::builder().method(method).uri(url);
    let mut request =
        request.header("content-type", "application/json").header("idempotency-key", key);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    https::send(request.body(body.to_string()).context("the method or the headers are not valid")?)
        .await
}

/// Returns the methods and the paths of all commands for operators.
async fn routes(deployment: &Deployment, stack: &Stack) -> Result<Vec<String>> {
    let manifests = Deployed::read(deployment, stack).await?.manifests;
    let endpoints = manifests.values().flat_map(Manifest::endpoints);
    let for_operators = endpoints.filter(|endpoint| endpoint.scope == Scope::Operate);
    Ok(for_operators.map(|endpoint| endpoint.route.to_string()).collect())
}

/// Whether the route has this method and path.
fn has_method_and_path(route: &str, method: &str, path: &str) -> bool {
    let Some((route_method, template)) = route.split_once(' ') else { return false };
    let (parts, wanted): (Vec<_>, Vec<_>) =
        (path.split('/').collect(), template.split('/').collect());
    let fits = |(part, wanted): (&&str, &&str)| {
        if wanted.starts_with('{') { !part.is_empty() } else { part == wanted }
    };
    route_method == method && parts.len() == wanted.len() && parts.iter().zip(&wanted).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_belongs_to_a_route_with_parameters() {
        let route = "POST /transfers/{id}/settlements";
        for (method, path, is_one) in [
            ("POST", "/transfers/7/settlements", true),
            ("PUT", "/transfers/7/settlements", false),
            ("POST", "/transfers//settlements", false),
            ("POST", "/transfers/7/settlements/8", false),
            ("POST", "/transfers/7/credits", false),
        ] {
            assert_eq!(has_method_and_path(route, method, path), is_one, "{method} {path}");
        }
    }

    #[test]
    fn the_outcome_of_a_failed_throttled_or_contended_command_is_unknown() {
        for (status, kind, is_known) in [
            (200, "", true),
            (401, "", true),
            (404, "urn:problem:transfer-not-found", true),
            (409, "urn:problem:account-exists", true),
            (409, "urn:problem:overtaken", true),
            (409, "urn:problem:booking-conflict", true),
            (422, "urn:problem:not-stuck", true),
            (409, "urn:problem:conflict", false),
            (409, "https://example.com/problems#conflict", false),
            (429, "", false),
            (500, "urn:problem:internal", false),
            (502, "", false),
            (503, "urn:problem:unavailable", false),
            (504, "", false),
        ] {
            let answer = (StatusCode::from_u16(status).unwrap(), json!({ "type": kind }));
            assert_eq!(require_outcome(answer).is_ok(), is_known, "{status} {kind}");
        }
    }
}
