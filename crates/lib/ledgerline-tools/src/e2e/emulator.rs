//! The emulator's process, and the programs that call it in place of AWS.

use std::{
    collections::BTreeMap,
    env,
    fs::File,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ledgerline_sam::build;
use serde::de::DeserializeOwned;

use super::{DEPLOYMENT, STACK, SURE};
use crate::tools;

const EMULATOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/emulator.py");

/// Returns the processor time of a process in seconds, which Linux counts in hundredths. Without
/// `/proc`, returns 0.
fn processor_seconds(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program, in parentheses, may have spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>() / 100
}

/// The running emulator and its address. Dropping the value kills the process.
pub(super) struct Emulator {
    process: Child,
    pub(super) python: PathBuf,
    url: String,
    /// The program of the operator's tool.
    ledger: PathBuf,
    /// An empty folder, the current folder of the tool.
    empty: PathBuf,
}

impl Emulator {
    pub(super) fn start(python: &Path) -> Result<Self> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let url = format!("http://127.0.0.1:{port}");
        let log = Path::new("target/e2e.log");
        // The emulator leaves the files that it unpacks. It unpacks them into this folder, so that
        // the next run replaces them.
        let files = env::current_dir()?.join("target/e2e");
        let _ = std::fs::remove_dir_all(&files);
        let empty = files.join("empty");
        std::fs::create_dir_all(&empty)?;
        let mut programs = build::build(Path::new("."), &["ledger"])?;
        let ledger = programs.remove("ledger").context("cargo built no ledger")?;
        let process = Command::new(python.join("python"))
            .arg(EMULATOR)
            .env("AUTH", "true")
            .env("GATEWAY_PORT", port.to_string())
            .env("MINISTACK_HOST", "127.0.0.1")
            .env("BIND_HOST", "127.0.0.1")
            .env("TMPDIR", &files)
            // The functions inherit this variable, which leads them to the emulator.
            .env("AWS_ENDPOINT_URL", &url)
            .env("PATH", env::join_paths([python.to_owned()].into_iter().chain(paths()))?)
            .stdout(File::create(log)?)
            .stderr(File::create("target/e2e.err.log")?)
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start the emulator")?;
        let mut this = Self { process, python: python.to_owned(), url, ledger, empty };
        let mut since = Instant::now();
        let mut worked = 0;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = this.process.try_wait()? {
                bail!("the emulator ended with {status}: see target/e2e.err.log");
            }
            let now = processor_seconds(this.process.id());
            // An idle program that polls uses less processor time.
            if now > worked {
                (since, worked) = (Instant::now(), now);
            }
            if since.elapsed() > Duration::from_secs(60) {
                bail!("the emulator does not answer: see {}", log.display());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(this)
    }

    /// Returns a command for a program that calls the emulator instead of AWS.
    pub(super) fn program(&self, bin: &Path, name: &str) -> Command {
        let mut command = tools::program(bin, name);
        command
            .env("AWS_ENDPOINT_URL", &self.url)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("STACK", STACK)
            .env("LEDGER", &self.ledger);
        command
    }

    /// Runs a command of `e2e/deployment.py`, and parses its output.
    pub(super) fn run_deployment_script<T: DeserializeOwned>(&self, command: &str) -> Result<T> {
        let mut python = self.program(&self.python, "python");
        let printed = tools::output(python.args([DEPLOYMENT, command]))?;
        serde_json::from_str(&printed).with_context(|| format!("{command} printed {printed}"))
    }

    /// Runs the operator's tool with these credentials, and returns its exit code and output. As on
    /// the computer of an on-call engineer, the program runs alone: in an empty folder and without
    /// cargo.
    pub(super) fn ledger(
        &self,
        credentials: &BTreeMap<String, String>,
        arguments: &[&str],
    ) -> Result<(Option<i32>, String)> {
        let output = self.tool(credentials, arguments).output().context("ledger")?;
        let printed = [output.stdout, output.stderr].concat();
        Ok((output.status.code(), String::from_utf8_lossy(&printed).into_owned()))
    }

    /// Runs a command of the operator's tool that writes. Fails if it succeeds for an operator who
    /// may not write. For one who may, kills it at its beginning and later, and fails unless it
    /// then succeeds twice.
    pub(super) fn write(
        &self,
        credentials: &BTreeMap<String, String>,
        arguments: &[&str],
        may_write: bool,
    ) -> Result<()> {
        let sure = [arguments, &SURE].concat();
        let (pauses, runs) = if may_write { (&[50, 400, 1_500][..], 2) } else { (&[][..], 1) };
        for pause in pauses {
            let mut tool = self.tool(credentials, &sure);
            let mut killed = tool.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            std::thread::sleep(Duration::from_millis(*pause));
            killed.kill()?;
            killed.wait()?;
        }
        for _ in 0..runs {
            let (code, printed) = self.ledger(credentials, &sure)?;
            if (code == Some(0)) != may_write {
                bail!("ledger {} ended with {code:?}: {printed}", arguments.join(" "));
            }
        }
        Ok(())
    }

    fn tool(&self, credentials: &BTreeMap<String, String>, arguments: &[&str]) -> Command {
        let mut ledger = Command::new(&self.ledger);
        ledger.current_dir(&self.empty).env_remove("CARGO").env("PATH", "");
        ledger.args(["--json", "--stack", STACK]).args(arguments);
        ledger.env("AWS_ENDPOINT_URL", &self.url).env("AWS_REGION", "us-east-1").envs(credentials);
        ledger.stdin(Stdio::null());
        ledger
    }
}

fn paths() -> Vec<PathBuf> {
    env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default()
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
