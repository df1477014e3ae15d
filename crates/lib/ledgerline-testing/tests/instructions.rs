//! Counts the instructions of the command function of tanks, and of the core alone. Instructions do
//! not depend on the load of the machine, and seconds do.
//!
//! `TANK_COMMANDS` names another build of the function, to compare with.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]

mod secured;

use std::{
    env, fs, iter,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
    time::Duration,
};

use ledgerline_local::host::invoke_program;
use ledgerline_sam::build;
use ledgerline_testing::{dynamodb, workspace};
use tempfile::NamedTempFile;

use crate::secured::{behind_tls, environment, sample};

/// The instructions from the start to the first response, including the connection. docs/sizes.md
/// has these figures.
const START: u64 = 5_400_500;
/// The instructions of another command to the same tank, whose state the instance has cached.
const WARM: u64 = 779_500;
/// The highest resident memory after twenty more commands, in KB.
const RESIDENT: u64 = 8_100;

/// The kinds of work of the example `work`. Each has the instructions for one event, command,
/// record or commit, and the number of these that are counted.
const WORK: [(&str, u64, u64); 13] = [
    ("decode", 2_320, 1_000),
    ("decode-without-note", 1_670, 1_000),
    ("load", 22_560, 1_000),
    ("fold", 6_150, 1_000),
    ("fold-without-note", 5_620, 1_000),
    ("commands", 27_100, 1_000),
    ("commands-without-note", 24_460, 1_000),
    ("commands-with-sdk-without-note", 464_600, 100),
    ("records", 60_650, 1_000),
    ("fanout", 234_500, 100),
    ("fanout-with-bus", 340_100, 100),
    ("shown", 523_200, 100),
    ("logged", 542_500, 100),
];

/// The folder with the release builds of the function and the example `work`. Cargo builds both at
/// once, because the last crate of each occupies one core.
static RELEASE: LazyLock<PathBuf> = LazyLock::new(|| {
    let mut cargo = build::cargo();
    cargo.args(["build", "--release", "--package", "ledgerline-tank"]);
    cargo.args(["--bin", "tank-commands", "--example", "work"]);
    assert!(cargo.current_dir(workspace()).status().unwrap().success());
    // The release build is beside the build of this test.
    Path::new(env!("CARGO_BIN_EXE_tank-local")).ancestors().nth(2).unwrap().join("release")
});

/// Returns the highest resident memory of the function, in KB, after a start and this number of
/// commands. Also returns the id of the function's process, which has received a signal to
/// terminate.
///
/// The first command installs the tank that the others fill. `prefix` is the program that runs the
/// function, if any.
async fn resident(prefix: &str, program: &Path, commands: usize) -> (u64, String) {
    let services = dynamodb(&["CommitsTable", "RequestsTable"]).await;
    let tls = behind_tls(&services.url, (Duration::ZERO, Duration::ZERO)).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("tank-commands");
    let pid = folder.path().join("pid");
    // The function runs in a session of its own. A kill together with the script would keep
    // callgrind from writing its counts.
    let run = format!(
        "#!/bin/sh\nPATH=/usr/local/bin:/usr/bin:/bin\nsetsid {prefix} {} &\necho $! > {}\nwait\n",
        program.display(),
        pid.display()
    );
    fs::write(&script, run).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let install = sample("install").unwrap();
    let fill = sample("fill").unwrap();
    let events = iter::once(install).chain(iter::repeat_n(fill, commands - 1));
    let answers = invoke_program(&script, environment(&tls, None).unwrap(), events).await.unwrap();
    for answer in answers {
        assert!(matches!(answer["statusCode"].as_u64(), Some(200 | 201)), "{answer}");
    }
    let pid = fs::read_to_string(&pid).unwrap().trim().to_owned();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let resident = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    (resident, pid)
}

/// Returns the instructions of a start and of this number of commands.
async fn instructions(program: &Path, commands: usize) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("slow_clock.so");
    let counts = folder.path().join("counts");
    // Without the slow clock, the machine's speed would decide whether a start makes one connection
    // or two (slow_clock.c).
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/slow_clock.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-shared", "-fPIC", source, "-o"]).arg(&clock);
    assert!(compiler.status().unwrap().success());
    let valgrind = format!(
        "env LD_PRELOAD={} valgrind --quiet --tool=callgrind --callgrind-out-file={}",
        clock.display(),
        counts.display()
    );
    let (_, pid) = resident(&valgrind, program, commands).await;
    loop {
        // callgrind writes its counts when the function exits, which takes longer on a slow
        // machine.
        let had_ended = has_ended(&pid);
        if let Some(counted) = counted(&counts) {
            return counted;
        }
        assert!(!had_ended, "valgrind wrote no counts to {}", counts.display());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Whether a process has exited. It is a zombie until its parent has waited for it. Its first
/// thread may be a zombie while another thread still writes the counts, so all threads are checked.
fn has_ended(pid: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.into_iter().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let state = status.lines().find_map(|line| line.strip_prefix("State:"));
        state.is_none_or(|state| state.trim().starts_with(['Z', 'X']))
    })
}

/// Returns the count of callgrind, once the file contains it.
fn counted(counts: &Path) -> Option<u64> {
    let text = fs::read_to_string(counts).unwrap_or_default();
    Some(text.lines().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().unwrap())
}

/// Returns the instructions of this work.
fn work(program: &Path, what: &str, times: u64) -> u64 {
    let counts = NamedTempFile::new().unwrap();
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind"]);
    valgrind.arg(format!("--callgrind-out-file={}", counts.path().display()));
    assert!(valgrind.arg(program).args([what, &times.to_string()]).status().unwrap().success());
    counted(counts.path()).unwrap()
}

/// Returns the least of three counts, because the system's scheduling adds instructions that are
/// not the function's.
async fn least(program: &Path, commands: usize) -> u64 {
    let mut counts = Vec::new();
    for _ in 0..3 {
        counts.push(instructions(program, commands).await);
    }
    counts.into_iter().min().unwrap()
}

#[tokio::test]
#[ignore = "it needs valgrind: cargo test -p ledgerline-testing --test instructions -- --ignored --nocapture"]
async fn a_command_takes_no_more_instructions_than_its_budget() {
    let program = match env::var_os("TANK_COMMANDS") {
        Some(program) => program.into(),
        None => RELEASE.join("tank-commands"),
    };
    let start = least(&program, 1).await;
    let warm = (least(&program, 21).await - start) / 20;
    let (resident, _) = resident("", &program, 21).await;
    eprintln!(
        "a start and the first answer: {start}; a warm command: {warm}; resident: {resident} KB"
    );
    for (what, counted, may) in [
        ("a start", start, START),
        ("a warm command", warm, WARM),
        ("resident memory", resident, RESIDENT),
    ] {
        assert!(counted <= may + may / 20, "{what}: {counted}, and docs/sizes.md says {may}");
    }
}

#[test]
#[ignore = "it needs valgrind, too"]
fn the_core_takes_no_more_instructions_than_its_budget() {
    let program = RELEASE.join("examples/work");
    for (what, may, times) in WORK {
        let each = |what| (work(&program, what, 100 + times) - work(&program, what, 100)) / times;
        // The count of `load` excludes the building of the database's response. The count of `fold`
        // also excludes the SDK's parsing of it.
        let counted = match what {
            "load" => each("load") - each("page"),
            "fold" => each("load") - each("items"),
            "fold-without-note" => each("load-without-note") - each("items-without-note"),
            _ => each(what),
        };
        eprintln!("{what}: {counted}");
        assert!(counted <= may + may / 20, "{what}: {counted}, and docs/sizes.md says {may}");
    }
}
