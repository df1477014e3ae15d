//! `cargo xtask fuzz`: sends requests that are made from the contract to a local stack, and checks
//! every answer against the contract, with schemathesis.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use ledgerline_sam::{build::cargo, template};
use serde_json::Value;

use crate::{schemas, tools};

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/schemathesis.toml");

/// The checks of every answer. The other checks of schemathesis expect other rules of HTTP: API
/// Gateway answers 404, not 405, to a method that a path does not have.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance,response_headers_conformance,\
                      negative_data_rejection";

/// Starts a local stack, and checks its answers to requests from the contract. Each route gets
/// the examples, the limits of its schemas, and at most `examples` generated requests.
///
/// # Errors
/// When an answer does not conform to the contract, or the stack does not start.
pub(crate) fn run(examples: u32, seed: u64) -> Result<()> {
    tools::require_linux()?;
    let bin = tools::schemathesis()?;
    let stack = Stack::start()?;
    let report = Path::new("target/fuzz.har");
    // A report of an earlier run must not pass for that of this run.
    _ = fs::remove_file(report);
    let mut fuzz = tools::program(&bin, "schemathesis");
    fuzz.args(["--config-file", CONFIG, "run"])
        .arg(Path::new(schemas::FOLDER).join("openapi.json"))
        .args(["--url", &stack.url, "--seed", &seed.to_string()])
        .args(["--max-examples", &examples.to_string(), "--checks", CHECKS])
        .args(["--header", "Authorization: Bearer fuzzer"])
        .args(["--phases", "examples,coverage,fuzzing", "--warnings", "off"])
        .args(["--continue-on-failure", "--request-timeout", "30"])
        .args(["--report", "har", "--report-har-path"])
        .arg(report);
    let done = tools::run(&mut fuzz);
    let statuses = statuses(report).unwrap_or_default();
    println!("statuses of {} answers:", statuses.values().sum::<usize>());
    for (status, answers) in &statuses {
        println!("  {status}: {answers}");
    }
    done.context("an answer does not conform to the contract: see above")?;
    // A stack that refuses everything conforms to the contract too.
    if statuses.keys().all(|status| !(200..300).contains(status)) {
        bail!("no request succeeded");
    }
    Ok(())
}

/// Returns the number of answers with each status.
fn statuses(report: &Path) -> Result<BTreeMap<u64, usize>> {
    let text = fs::read_to_string(report).with_context(|| report.display().to_string())?;
    let report: Value = serde_json::from_str(&text)?;
    let mut statuses = BTreeMap::new();
    for entry in report["log"]["entries"].as_array().into_iter().flatten() {
        let status = entry["response"]["status"].as_u64().unwrap_or_default();
        *statuses.entry(status).or_default() += 1;
    }
    Ok(statuses)
}

/// A running local stack. Dropping this value stops the stack.
struct Stack {
    url: String,
    child: Child,
}

impl Stack {
    fn start() -> Result<Self> {
        let mut local = cargo();
        local.args(["run", "--quiet", "--package", "local", "--"]);
        local.args(["--quiet", "--port", "0", "--aws-address", "127.0.0.1:0"]);
        // The contract has the routes of views in all stores.
        let template = template::tree(Path::new("template.yaml"))?;
        local.args(template::store_options(&template["Parameters"]));
        let mut child = local.stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
        let output = BufReader::new(child.stdout.take().context("the stack has no output")?);
        let mut lines = output.lines();
        let ready = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let url = line.strip_prefix("Ready at ")?.split(". ").next()?;
            Some(url.to_owned())
        });
        // A full pipe would stop the stack.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { url: ready.context("the local stack does not start")?, child })
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        _ = Command::new("kill").arg(self.child.id().to_string()).status();
        _ = self.child.wait();
    }
}
