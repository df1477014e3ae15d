//! `cargo xtask sizes`: measures the sizes and start times of the functions, and of an empty
//! function for comparison.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{invocations::Local, tools};

/// The number of starts of each function. The table shows their median.
const STARTS: usize = 15;

/// Measures the result of the last `sam build` for this machine, and prints the table for
/// docs/sizes.md.
pub(crate) fn run() -> Result<()> {
    tools::require_linux()?;
    let sam = tools::sam()?;
    // Build the empty function like the others: with SAM's builder, for the same target.
    let mut hello = tools::program(&sam, "cargo-lambda");
    hello.args(["lambda", "build", "--release", "-p", "ledgerline-lambda", "--example", "hello"]);
    hello.arg(if tools::architecture() == "arm64" { "--arm64" } else { "--x86-64" });
    tools::run(&mut hello)?;

    let env_vars = "target/sizes.json";
    let _local = Local::start("127.0.0.1:0", env_vars)?;
    let environment: BTreeMap<String, BTreeMap<String, String>> =
        serde_json::from_str(&fs::read_to_string(env_vars)?)?;
    let mut rows = vec![(
        "hello world".to_owned(),
        PathBuf::from("target/lambda/hello/bootstrap"),
        BTreeMap::new(),
    )];
    for (function, mut environment) in environment {
        let program = Path::new(".aws-sam/build").join(&function).join("bootstrap");
        // The functions run directly on this machine, not in a container.
        if let Some(url) = environment.get_mut("AWS_ENDPOINT_URL") {
            *url = url.replace("host.docker.internal", "127.0.0.1");
        }
        rows.push((function, program, environment));
    }
    println!("| function | binary, MB | compressed, MB | init, ms |\n|---|---|---|---|");
    for (name, program, environment) in rows {
        let size = fs::metadata(&program)
            .with_context(|| format!("{}: run sam build", program.display()))?
            .len();
        let packed = compressed(&program)?;
        let init =
            median((0..STARTS).map(|_| init(&program, &environment)).collect::<Result<_>>()?);
        println!(
            "| {name} | {} | {} | {:.1} |",
            megabytes(size),
            megabytes(packed),
            init.as_secs_f64() * 1e3
        );
    }
    Ok(())
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{}", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}

/// Returns the approximate size of the upload: a ZIP file is deflated, like the output of gzip.
fn compressed(program: &Path) -> Result<u64> {
    let mut gzip = Command::new("gzip").arg("-c").arg(program).stdout(Stdio::piped()).spawn()?;
    let mut output = gzip.stdout.take().context("it is piped")?;
    let bytes = std::io::copy(&mut output, &mut std::io::sink())?;
    gzip.wait()?;
    Ok(bytes)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns the time from the start of the process to its first request for an event, which Lambda
/// calls init. The time includes the opening of connections.
fn init(program: &Path, environment: &BTreeMap<String, String>) -> Result<Duration> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let started = Instant::now();
    let mut process = Command::new(program)
        .env_clear()
        .envs(environment)
        .env("AWS_LAMBDA_RUNTIME_API", listener.local_addr()?.to_string())
        .envs([
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "local"),
            ("AWS_SECRET_ACCESS_KEY", "local"),
            ("AWS_LAMBDA_FUNCTION_NAME", "measured"),
            ("AWS_LAMBDA_FUNCTION_VERSION", "1"),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256"),
            ("AWS_LAMBDA_LOG_GROUP_NAME", "none"),
            ("AWS_LAMBDA_LOG_STREAM_NAME", "none"),
        ])
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| program.display().to_string())?;
    let (mut connection, _) = listener.accept()?;
    let mut line = String::new();
    BufReader::new(&mut connection).read_line(&mut line)?;
    let took = started.elapsed();
    let _ =
        connection.write_all(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n");
    process.kill()?;
    process.wait()?;
    if !line.contains("/invocation/next") {
        bail!("{} does not start: its first request is {line}", program.display());
    }
    Ok(took)
}
