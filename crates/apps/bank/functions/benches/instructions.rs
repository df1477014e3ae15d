//! Counts the instructions of the function for an account's commands, as `sam build` built it for
//! this machine. Instructions do not depend on the load of the machine, and seconds do.
//!
//! valgrind runs the function against an emulated DynamoDB without TLS, once with one command and
//! once with more. The difference is that of warm commands. It fails if a count passes its limit
//! (docs/sizes.md).

#![allow(clippy::unwrap_used, missing_docs, reason = "in a benchmark a panic is the report")]

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::PathBuf,
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    http::StatusCode,
    response::IntoResponse,
    routing::{get, post},
};
use gungraun::{
    BinaryBenchmarkConfig, Callgrind, Command, Delay, DelayKind, EventKind, ExitWith,
    binary_benchmark, binary_benchmark_group, main,
};
use ledgerline_sam::template::Source;
use ledgerline_testing::{dynamodb, table, workspace};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

/// The logical id of the function in the template.
const FUNCTION: &str = "AccountCommandsFunction";
/// The address of Lambda's Runtime API.
const RUNTIME: ([u8; 4], u16) = ([127, 0, 0, 1], 46_531);
/// The address of the emulated DynamoDB.
const DYNAMODB: ([u8; 4], u16) = ([127, 0, 0, 1], 46_532);

/// The commands of the longer run.
const MANY: usize = 101;
/// The most instructions of a start with one command, in a build without link-time optimization. A
/// second connection, which a slow machine may open, takes 0.4 million.
const FIRST_LIMIT: u64 = 3_600_000;
/// The most instructions of a start with [`MANY`] commands: a twentieth above the count.
const MANY_LIMIT: u64 = 92_200_000;

/// Serves the Runtime API and DynamoDB until the function has answered this many commands: the
/// first opens the account, the others are credits. Then this process exits, so the function does
/// too.
#[tokio::main(flavor = "current_thread")]
async fn serve(commands: usize) {
    let services = dynamodb(&["CommitsTable", "RequestsTable"]).await;
    let listener = TcpListener::bind(SocketAddr::from(DYNAMODB)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let address = services.url.trim_start_matches("http://").to_owned();
            tokio::spawn(async move {
                let mut service = TcpStream::connect(address).await?;
                copy_bidirectional(&mut client, &mut service).await
            });
        }
    });
    let next = move || async move {
        static SENT: AtomicUsize = AtomicUsize::new(0);
        let event = match SENT.fetch_add(1, Ordering::Relaxed) {
            0 => "open",
            sent if sent < commands => "credit",
            _ => process::exit(0),
        };
        let event = workspace().join(format!("events/account-commands/{event}.json"));
        let headers = [
            ("lambda-runtime-aws-request-id", "8476a536-e9f4-11e8-9739-2dfe598c3fcd"),
            ("lambda-runtime-deadline-ms", "4102444800000"),
            ("lambda-runtime-invoked-function-arn", "arn:aws:lambda:us-east-1:000000000000:f"),
        ];
        (headers, fs::read(event).unwrap()).into_response()
    };
    let response = |body: String| async move {
        assert!(
            ["200", "201"].iter().any(|status| body.contains(&format!("\"statusCode\":{status}"))),
            "{body}"
        );
        StatusCode::ACCEPTED
    };
    let api = Router::new()
        .route("/2018-06-01/runtime/invocation/next", get(next))
        .route("/2018-06-01/runtime/invocation/{id}/response", post(response));
    let listener = TcpListener::bind(SocketAddr::from(RUNTIME)).await.unwrap();
    axum::serve(listener, api).await.unwrap();
}

/// Returns the variables of the function in the template, with the emulated services in place of
/// AWS.
fn environment() -> BTreeMap<String, String> {
    let path = workspace().join("template.yaml");
    let source = Source::parse(&fs::read_to_string(&path).unwrap(), &path).unwrap();
    let template = source.template(&BTreeMap::default(), "http://127.0.0.1").unwrap();
    let function = template.functions.into_iter().find(|function| function.id == FUNCTION);
    let mut environment = function.unwrap().environment;
    let endpoint = format!("http://{}", SocketAddr::from(DYNAMODB));
    for (name, value) in [
        ("COMMITS_TABLE", table("CommitsTable")),
        ("REQUESTS_TABLE", table("RequestsTable")),
        ("AWS_LAMBDA_RUNTIME_API", SocketAddr::from(RUNTIME).to_string()),
        ("AWS_LAMBDA_FUNCTION_NAME", "account-commands".to_owned()),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128".to_owned()),
        ("AWS_LAMBDA_FUNCTION_VERSION", "1".to_owned()),
        ("AWS_LAMBDA_LOG_GROUP_NAME", "log".to_owned()),
        ("AWS_LAMBDA_LOG_STREAM_NAME", "log".to_owned()),
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "local".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "local".to_owned()),
        // The certificates of this machine would be counted.
        ("SSL_CERT_FILE", "/dev/null".to_owned()),
    ] {
        environment.insert(name.to_owned(), value);
    }
    environment
}

fn built() -> PathBuf {
    workspace().join(".aws-sam/build").join(FUNCTION).join("bootstrap")
}

fn limited(instructions: u64) -> BinaryBenchmarkConfig {
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    callgrind.hard_limits([(EventKind::Ir, instructions)]);
    let mut config = BinaryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

#[binary_benchmark]
#[bench::first(args = (1), setup = serve, config = limited(FIRST_LIMIT))]
#[bench::many(args = (MANY), setup = serve, config = limited(MANY_LIMIT))]
fn account_commands(_commands: usize) -> Command {
    let runtime = Delay::new(DelayKind::TcpConnect(SocketAddr::from(RUNTIME)));
    Command::new(built())
        .envs(environment())
        .setup_parallel(true)
        .delay(runtime)
        // The Runtime API is gone after the last command.
        .exit_with(ExitWith::Failure)
        .build()
}

binary_benchmark_group!(name = functions, benchmarks = account_commands);
main!(binary_benchmark_groups = functions);
