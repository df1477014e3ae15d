//! `cargo xtask samples`: runs `sam local invoke` for every function with every sample event, on a
//! local stack of its own.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Stdio},
};

use anyhow::{Context, Result, anyhow, bail};
use ledgerline_sam::{
    build::cargo,
    sample_events::{Sample, has, samples},
};
use serde_json::Value;

use crate::tools;

/// The address at which containers reach this machine. On Linux, Docker's bridge has this address.
/// With Docker Desktop, containers use the address that programs on the machine use.
const DEFAULT_ADDRESS: &str =
    if cfg!(target_os = "linux") { "172.17.0.1:4566" } else { "127.0.0.1:4566" };

/// Invokes all functions with all samples, and prints the answers. `sam_arguments`, such as
/// `--skip-pull-image`, go to SAM unchanged.
pub(crate) fn run(address: Option<&str>, build: bool, sam_arguments: &[String]) -> Result<()> {
    let sam = tools::sam()?;
    let address = address.unwrap_or(DEFAULT_ADDRESS);
    let architecture = format!("Architecture={}", tools::architecture());
    if build {
        tools::sam_build(&sam)?;
    }
    let _local = Local::start(address, "target/sam-local.json")?;
    let mut wrong = 0;
    let log = File::create("target/samples.log")?;
    for Sample { function, path, answer: expected, .. } in samples(Path::new("."))? {
        let mut command = tools::program(&sam, "sam");
        command.args(["local", "invoke", "--config-env", "local", &function, "--event"]);
        command.arg(Path::new("events").join(&path)).args(["--parameter-overrides", &architecture]);
        let output = command.args(sam_arguments).stderr(log.try_clone()?).output()?;
        let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        // SAM prints nothing for a function whose answer is `null`.
        let answer =
            if printed.is_empty() { Ok(Value::Null) } else { serde_json::from_str(&printed) };
        let right = output.status.success() && answer.is_ok_and(|answer| has(&answer, &expected));
        wrong += usize::from(!right);
        let verdict = if right { "as documented" } else { "NOT as documented" };
        println!("sam local invoke {function} -e events/{path}: {verdict}\n  {printed}");
        std::io::stdout().flush()?;
    }
    if wrong > 0 {
        bail!(
            "{wrong} answers differ from `tests/answers`; read the output of SAM in `target/samples.log`"
        );
    }
    Ok(())
}

/// A running local stack. Dropping the value kills its process.
pub(crate) struct Local(Child);

impl Local {
    /// Starts the stack, with its AWS services at this address, and waits until it is ready.
    pub(crate) fn start(address: &str, env_vars: &str) -> Result<Self> {
        let mut cargo = cargo();
        cargo.args([
            "run",
            "--quiet",
            "-p",
            "local",
            "--",
            "--quiet",
            "--port",
            "0",
            "--aws-address",
            address,
        ]);
        let mut process = cargo.args(["--env-vars", env_vars]).stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().context("it is piped")?;
        let this = Self(process);
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        lines
            .find(|line| line.starts_with("Ready"))
            .ok_or_else(|| anyhow!("the local stack did not start: see its output"))?;
        // Read the other lines of the stack: at a full pipe, the stack would block.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(this)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
