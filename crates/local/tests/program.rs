//! Tests of the program `local`: command lines that it refuses, and environments in which it
//! serves.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

#[test]
fn a_missing_template_and_an_unknown_parameter_are_named() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_local"))
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .args(arguments)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(&["--template", "nowhere.yaml"]).contains("nowhere.yaml"));
    assert!(run(&["--parameter-overrides", "Colour=red"]).contains("there is no parameter Colour"));
}

/// `local | grep -m1 Ready` closes the output, a company's environment may name a proxy, and macOS
/// allows 256 descriptors by default.
#[test]
fn the_stack_serves_64_clients_with_its_output_closed_a_proxy_and_256_descriptors() {
    let mut local = Command::new("sh")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .args(["-c", "ulimit -S -n 256; exec \"$0\" --port 0 --aws-address 127.0.0.1:0"])
        .arg(env!("CARGO_BIN_EXE_local"))
        .env("http_proxy", "http://127.0.0.1:9")
        .env("all_proxy", "http://127.0.0.1:9")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = |output| BufReader::new(output).lines().map_while(Result::ok);
    let stdout = lines(Box::new(local.stdout.take().unwrap()) as Box<dyn Read>);
    let mut addresses = stdout.filter_map(|line| {
        let begins = ["  AWS ", "Ready at "].iter().any(|begin| line.starts_with(begin));
        let url = line.split_once("http://")?.1;
        let is_of_address = |c: char| c.is_ascii_digit() || ".:".contains(c);
        let address = url.split(|c| !is_of_address(c)).next()?.trim_end_matches('.');
        begins.then(|| address.to_owned())
    });
    let aws = addresses.next().unwrap();
    let api = addresses.next().unwrap();
    // From here on, the output of the program has no reader.
    drop(addresses);
    drop(local.stderr.take());

    let answers: Vec<_> = (0..64)
        .map(|_| {
            let api = api.clone();
            thread::spawn(move || answer(&api, "GET /events?limit=1 HTTP/1.1", &[], ""))
        })
        .collect();
    for answered in answers {
        let answered = answered.join().unwrap();
        assert!(answered.starts_with("HTTP/1.1 200"), "{answered}");
    }
    let list = [
        ("x-amz-target", "DynamoDB_20120810.ListTables"),
        ("content-type", "application/x-amz-json-1.0"),
        ("x-amz-date", "20261121T093000Z"),
        (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=local/20261121/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0",
        ),
    ];
    let answered = answer(&aws, "POST / HTTP/1.1", &list, "{}");
    assert!(answered.contains("CommitsTable"), "{answered}");
    local.kill().unwrap();
    local.wait().unwrap();
}

/// Every other test runs the binaries that SAM ships. This test runs the program as a developer
/// runs it.
#[test]
#[cfg(target_os = "linux")]
fn a_function_is_a_process_of_the_development_binary_or_of_its_own() {
    for (arguments, expected) in [(&[][..], "handlers"), (&["--own-binaries"], "fanout")] {
        let mut local = Command::new(env!("CARGO_BIN_EXE_local"))
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .args(["--port", "0", "--aws-address", "127.0.0.1:0"])
            .args(arguments)
            // With this variable, the stack would run the functions of the test build.
            .env_remove("LEDGERLINE_BUILT")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(local.stdout.take().unwrap()).lines().map_while(Result::ok);
        let pid = lines.find_map(|line| {
            line.split_once(" fanout started (pid ")?.1.strip_suffix(')').map(ToOwned::to_owned)
        });
        let program = pid.and_then(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).ok());
        local.kill().unwrap();
        local.wait().unwrap();
        let program = program.unwrap();
        assert!(program.ends_with(expected), "{}", program.display());
    }
}

/// Sends a request, and returns the response with its head.
fn answer(address: &str, request: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "{request}\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n"
    );
    stream.write_all(format!("{head}{headers}\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
