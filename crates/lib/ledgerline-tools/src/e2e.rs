//! `cargo xtask e2e`: tests the deployment on a third party's emulator of AWS, with its IAM
//! evaluation on. It runs the real `sam build` and `sam deploy` of the unchanged template, and then
//! the scenario over HTTP. `e2e/*.py` adds the features that the emulator lacks; docs/emulator.md
//! lists them.

mod emulator;

use std::{collections::BTreeMap, env, fs, path::Path, process::Command, time::Instant};

use anyhow::{Context, Result, bail};
use ledgerline_sam::{
    build::cargo,
    sample_events::{Sample, has, samples},
    template::{Source, WEB_APP},
};
use serde::Deserialize;
use serde_json::{Value, json};

use self::emulator::Emulator;
use crate::tools;

const STACK: &str = "ledgerline-e2e";
const DEPLOYMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/deployment.py");

/// The options of a command of the operator's tool that writes.
const SURE: [&str; 4] = ["--write", "--yes", "--why", "a test of the deployment"];

/// The origin of the web pages that may call the deployed API.
const ORIGIN: &str = "https://app.example.com";

/// Builds for this machine, deploys, and tests the deployment.
pub(crate) fn run(build: bool) -> Result<()> {
    tools::require_linux()?;
    let sam = tools::sam()?;
    let python = tools::ministack()?;
    if build {
        tools::sam_build(&sam)?;
    }
    let emulator = Emulator::start(&python)?;
    let template = Source::read(Path::new("template.yaml"))?.json();
    let has = |parameter: &str| template["Parameters"][parameter].is_object();
    let has_web_app = has(WEB_APP);
    deploy(&emulator, &sam, has_web_app, has("ArchiveRole"))?;

    let Routes { url, routes } = emulator.run_deployment_script("routes")?;
    routes.iter().for_each(|route| println!("  {route}"));
    let preflight: BTreeMap<String, Option<String>> =
        emulator.run_deployment_script("preflight")?;
    for (origin, allowed) in preflight {
        let expected = (origin == ORIGIN).then_some(ORIGIN);
        if allowed.as_deref() != expected {
            bail!(
                "the preflight response to `{origin}` allows {allowed:?} instead of {expected:?}"
            );
        }
    }
    println!("  only pages of {ORIGIN} read responses of the API");
    // The commands in the documents need `jq`, and the installed Python packages do not contain it.
    if Command::new("jq").arg("--version").output().is_err() {
        bail!("the commands of the documents need jq: install it (apt-get install jq)");
    }
    let tokens: BTreeMap<String, String> = emulator.run_deployment_script("tokens")?;
    println!(
        "  tokens by the commands of the documents: {}",
        tokens.keys().cloned().collect::<Vec<_>>().join(", ")
    );
    if has_web_app {
        in_browser(&emulator)?;
    }
    // Each commit of a category with body objects goes to S3.
    let _: Value = emulator.run_deployment_script("put_commits_into_objects")?;
    let mut scenario = cargo();
    // Run one test after the other, because the emulator is one process.
    scenario.args([
        "test",
        "--quiet",
        "--workspace",
        "--test",
        "scenario",
        "--",
        "--test-threads=1",
    ]);
    tools::run(scenario.env("BASE_URL", &url).envs(&tokens))?;
    let _: Value = emulator.run_deployment_script("restore_body_limit")?;

    invoke_samples(&emulator)?;
    // The attempts come last, because they change which principals may assume the writer's role.
    attempt_changes(&emulator)?;
    println!("The operator's tool, with the policies for it:");
    let readers = operators(&emulator)?;
    match readers.get("reader") {
        Some(Operator { credentials, .. }) => analyse(&emulator, credentials),
        None => Ok(()),
    }
}

/// Runs the queries of docs/analyse.md on an export of the log.
fn analyse(emulator: &Emulator, reader: &BTreeMap<String, String>) -> Result<()> {
    let Ok(page) = fs::read_to_string("docs/analyse.md") else {
        println!("NOT TESTED: queries of an export. The workspace has no docs/analyse.md.");
        return Ok(());
    };
    let folder = Path::new("target/e2e").canonicalize()?;
    let _ = fs::remove_dir_all(folder.join("export"));
    let export = folder.join("export").display().to_string();
    let (code, printed) = emulator.ledger(reader, &["export", "--all", &export])?;
    if code != Some(0) {
        bail!("ledger export ended with {code:?}: {printed}");
    }
    println!("  ledger export: {}", printed.trim());
    let python = tools::duckdb()?;
    let queries = page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    let queries: Vec<_> = queries.collect();
    if queries.is_empty() {
        bail!("docs/analyse.md has no query");
    }
    for query in queries {
        let script = "import duckdb, sys; rows = duckdb.sql(sys.argv[1]); print(rows); \
                      assert rows is None or len(rows)";
        let mut duckdb = tools::program(&python, "python");
        let printed = tools::output(duckdb.current_dir(&folder).args(["-c", script]).arg(query))?;
        println!("{printed}");
    }
    Ok(())
}

/// Deploys the stack to the emulator.
fn deploy(emulator: &Emulator, sam: &Path, has_web_app: bool, has_archive: bool) -> Result<()> {
    let architecture = format!("Architecture={}", tools::architecture());
    let role = has_archive.then(|| emulator.run_deployment_script::<String>("create_archive_role"));
    let role = role.transpose()?.map(|role| format!("ArchiveRole={role}"));
    let allowed = format!("AllowedOrigins={ORIGIN}");
    let arguments = [
        "deploy",
        "--stack-name",
        STACK,
        "--no-confirm-changeset",
        "--resolve-s3",
        "--region",
        "us-east-1",
        "--capabilities",
        "CAPABILITY_IAM",
        "--parameter-overrides",
        &architecture,
        // The emulator is slow, which proves nothing about the product. With these values, a read
        // waits longer, SQS redelivers a failed message sooner, and no request is throttled.
        "ReadYourWriteTimeout=5000",
        "QueueVisibilityTimeout=10",
        "RequestsPerSecond=1000",
        &allowed,
    ];
    // The documented commands take the code at this address.
    let web_app = [format!("{WEB_APP}=true"), "CallbackUrl=http://localhost:3000/callback".into()];
    let web_app = has_web_app.then_some(web_app).into_iter().flatten();
    tools::run(emulator.program(sam, "sam").args(arguments).args(web_app).args(role))
}

/// Fails if a principal can change a commit, an object or an answer, or IAM denies an action that a
/// role allows.
fn attempt_changes(emulator: &Emulator) -> Result<()> {
    println!("Attempts to change a commit, an object or an answer:");
    let denials: BTreeMap<String, Attempts> = emulator.run_deployment_script("denials")?;
    for (principal, attempts) in &denials {
        attempts.check(principal)?;
    }
    for command in ["attempt_order_changes", "attempt_objects", "attempt_archive_changes"] {
        let attempts: BTreeMap<String, Vec<Attempt>> = emulator.run_deployment_script(command)?;
        for (principal, attempts) in &attempts {
            let is_other = |attempt: &&Attempt| !attempt.outcome.starts_with(&attempt.expected);
            if let Some(Attempt { action, expected, outcome }) = attempts.iter().find(is_other) {
                bail!("`{action}` by {principal}: `{outcome}`, not `{expected}`");
            }
            let outcome =
                |Attempt { action, expected, .. }: &Attempt| format!("{action}: {expected}");
            let outcomes: Vec<_> = attempts.iter().map(outcome).collect();
            println!("  {principal}: {}", outcomes.join(", "));
        }
    }
    Ok(())
}

/// An action that a principal attempted.
#[derive(Deserialize)]
struct Attempt {
    action: String,
    /// The prefix that the outcome must have.
    expected: String,
    outcome: String,
}

/// A role of an operator: its credentials as environment variables, and the outcomes of attempts
/// that must be denied.
#[derive(Deserialize)]
struct Operator {
    credentials: BTreeMap<String, String>,
    outcomes: BTreeMap<String, String>,
    /// A stream of the log.
    stream: String,
}

/// Tests the operator's tool with the policies for it: the reads and writes that they allow, and
/// the attempts that they deny. Without such policies in the template, this tests nothing. Returns
/// the operators.
fn operators(emulator: &Emulator) -> Result<BTreeMap<String, Operator>> {
    let operators: BTreeMap<String, Operator> = emulator.run_deployment_script("operators")?;
    for (principal, Operator { credentials, outcomes, stream }) in &operators {
        for (action, outcome) in outcomes {
            if !outcome.starts_with("denied") {
                bail!("an operator who is a {principal} was not denied {action}: {outcome}");
            }
            println!("  {principal}: {action}: denied");
        }
        let reads = [
            &["doctor"][..],
            &["subscribers"],
            &["lag"],
            &["rebuild", "status", "Balances"],
            &["streams"],
            &["show", stream],
            &["reconcile", "--younger", "0"],
            &["dead-letters"],
            &["release", "list"],
            &["resources"],
            &["concurrency"],
        ];
        for arguments in reads {
            // A comparison with findings exits with 2.
            let started = Instant::now();
            let (code, printed) = emulator.ledger(credentials, arguments)?;
            if code != Some(0) && (code != Some(2) || arguments == ["doctor"]) {
                bail!(
                    "an operator who is a {principal} cannot do ledger {}: {printed}",
                    arguments.join(" ")
                );
            }
            let took = started.elapsed().as_secs_f64();
            println!("  {principal}: ledger {}: done in {took:.1} s", arguments.join(" "));
        }
        let may_write = principal == "writer";
        let write = || {
            emulator.write(credentials, &["redeliver", stream], may_write)?;
            order(emulator, credentials, stream, may_write)?;
            roll_back(emulator, credentials, may_write)?;
            stop(emulator, credentials, may_write)
        };
        write().with_context(|| format!("an operator who is a {principal}"))?;
        let done = if may_write { "done, also if it was killed before" } else { "refused" };
        println!(
            "  {principal}: ledger redeliver, order void, release promote and rollback, and \
             concurrency: {done}"
        );
    }
    if !operators.is_empty() {
        drift(emulator)?;
    }
    Ok(operators)
}

/// Tests `ledger redeliver --order` and `ledger order void`. An operator who may write redelivers
/// commits to `$all`, and voids a wrong entry. No operator voids the entry of a commit that the log
/// has.
fn order(
    emulator: &Emulator,
    credentials: &BTreeMap<String, String>,
    stream: &str,
    may_write: bool,
) -> Result<()> {
    emulator.write(credentials, &["redeliver", stream, "--order"], may_write)?;
    if may_write {
        let wrong: BTreeMap<String, String> = emulator.run_deployment_script("wrong_entry")?;
        let void = ["order", "void", &wrong["stream"], &wrong["version"]];
        emulator.write(credentials, &void, may_write)?;
    }
    let void = ["order", "void", stream, "1"];
    let (code, printed) = emulator.ledger(credentials, &[&void[..], &SURE].concat())?;
    if code != Some(1) || !printed.contains("the log has") {
        bail!("ledger order void of a right entry ended with {code:?}: {printed}");
    }
    Ok(())
}

/// Tests `ledger concurrency`. An operator who may write stops a function and starts it again;
/// meanwhile, `ledger doctor` reports the stopped function. The command of another operator fails
/// when it writes its record. The emulator needs roles with the right to stop functions, so the
/// role does not refuse this by itself.
fn stop(
    emulator: &Emulator,
    credentials: &BTreeMap<String, String>,
    may_write: bool,
) -> Result<()> {
    let concurrency = ["concurrency", "SequencerFunction"];
    emulator.write(credentials, &[&concurrency[..], &["--reserve", "0"]].concat(), may_write)?;
    if may_write {
        let (_, found) = emulator.ledger(credentials, &["doctor"])?;
        emulator.write(credentials, &[&concurrency[..], &["--release"]].concat(), may_write)?;
        let (_, after) = emulator.ledger(credentials, &["doctor"])?;
        let stopped = "it is stopped";
        if !found.contains(stopped) || after.contains(stopped) {
            bail!("ledger doctor does not follow ledger concurrency: {found}{after}");
        }
    }
    Ok(())
}

/// Tests that `ledger doctor --drift` finds changes that were made by hand: the roles whose trust
/// policies the attempts changed, and no other resource.
fn drift(emulator: &Emulator) -> Result<()> {
    let administrator = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let administrator = administrator.map(|name| (name.to_owned(), "test".to_owned())).into();
    // The stack was deployed from the template and the manifests of this workspace.
    let template = env::current_dir()?.join("template.yaml").display().to_string();
    let (code, printed) =
        emulator.ledger(&administrator, &["doctor", "--drift", "--template", &template])?;
    let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let wrong: Vec<_> = lines.filter(|line| line["wrong"].is_string()).collect();
    let is_changed_trust_policy = |line: &Value| {
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        text("of") == "drift"
            && text("name").ends_with("Role")
            && text("wrong").contains("AssumeRolePolicyDocument")
    };
    if code != Some(2) || wrong.is_empty() || !wrong.iter().all(is_changed_trust_policy) {
        bail!("ledger doctor --drift ended with {code:?}: {printed}");
    }
    println!("  an administrator: ledger doctor --drift: {} changed roles are found", wrong.len());
    Ok(())
}

/// Promotes new versions of all functions, and rolls back to the versions that were live.
fn roll_back(
    emulator: &Emulator,
    credentials: &BTreeMap<String, String>,
    may_write: bool,
) -> Result<()> {
    let file = env::current_dir()?.join("target/e2e-live.jsonl");
    let (_, before) = emulator.ledger(credentials, &["release", "list"])?;
    std::fs::write(&file, &before)?;
    emulator.write(credentials, &["release", "promote"], may_write)?;
    if may_write {
        let file = file.to_string_lossy();
        emulator.write(credentials, &["release", "rollback", "--to", &file], may_write)?;
        let (_, after) = emulator.ledger(credentials, &["release", "list"])?;
        if after != before {
            bail!("ledger release rollback leaves {after}instead of {before}");
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Routes {
    url: String,
    routes: Vec<String>,
}

/// The results of attempts to change a commit or an idempotency record.
#[derive(Deserialize)]
struct Attempts {
    outcomes: BTreeMap<String, String>,
    unchanged: bool,
    insert: String,
    read: String,
}

impl Attempts {
    fn check(&self, principal: &str) -> Result<()> {
        for (action, outcome) in &self.outcomes {
            // Print only the reason: the line already names the caller and the action, which the
            // emulator's sentence repeats.
            let reason =
                [" because ", " with "].iter().find_map(|word| Some(outcome.rsplit_once(word)?.1));
            let denied = outcome.starts_with("denied");
            println!(
                "  {principal}: {action}: {}{}",
                if denied { "denied, " } else { "" },
                reason.unwrap_or(outcome)
            );
        }
        println!("  {principal}: PartiQL INSERT at a version that is taken: {}", self.insert);
        println!("  {principal}: GetItem: {}", self.read);
        let because = if principal == "a command function" {
            "no identity-based policy"
        } else {
            "resource-based policy"
        };
        let denied = |outcome: &str| outcome.starts_with("denied") && outcome.contains(because);
        if let Some((action, outcome)) = self.outcomes.iter().find(|(_, outcome)| !denied(outcome))
        {
            bail!("rule 3: {principal} was not denied {action}: {outcome}");
        }
        if !self.unchanged
            || !self.insert.starts_with("DuplicateItemException")
            || self.read != "ALLOWED"
        {
            bail!(
                "rule 3: {principal} could change a commit or an answer, or could not read a commit"
            );
        }
        Ok(())
    }
}

/// Tests the web app in a browser: a user signs in at the user pool, and the app calls the API.
fn in_browser(emulator: &Emulator) -> Result<()> {
    if Command::new("npm").arg("--version").output().is_err() {
        println!("NOT TESTED: the web app in a browser. Install Node.js 20 or later.");
        return Ok(());
    }
    let deployed: Value = emulator.run_deployment_script("web_app")?;
    let mut test = Command::new("npx");
    test.current_dir("web").args(["vitest", "run", "--project", "deployed"]);
    tools::run(test.env("DEPLOYED", deployed.to_string()))
}

/// Invokes every function with every sample event.
fn invoke_samples(emulator: &Emulator) -> Result<()> {
    // The samples create aggregates, whose ids must be new here. They are new, because the stack
    // was just deployed.
    let samples = samples(Path::new("."))?;
    let events = samples
        .iter()
        .map(|sample| json!({ "function": sample.function, "event": sample.event }))
        .collect();
    let file = "target/e2e/samples.json";
    std::fs::write(file, Value::Array(events).to_string())?;
    let mut python = emulator.program(&emulator.python, "python");
    let printed = tools::output(python.args([DEPLOYMENT, "samples", file]))?;
    let answers: Vec<Value> = serde_json::from_str(&printed)?;
    let mut wrong = Vec::new();
    for (sample, answer) in samples.iter().zip(&answers) {
        if has(answer, &sample.answer) {
            println!("  {}: as documented", sample.path);
        } else {
            let Sample { path, step, about, answer: expected, .. } = sample;
            wrong.push(format!(
                "{path}, step {step} ({about}): the answer is {answer}, not {expected}"
            ));
        }
    }
    if !wrong.is_empty() || answers.len() != samples.len() {
        bail!("{} of {} samples: {}", answers.len(), samples.len(), wrong.join("\n"));
    }
    Ok(())
}
