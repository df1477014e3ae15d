//! A local stack as a user starts it: the program itself, on free ports.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod api;

use std::{
    io::{BufRead, BufReader, Read},
    ops::Deref,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex},
};

use api::{Api, PATIENCE, eventually, eventually_within};
use aws_sdk_dynamodb::types::AttributeValue;
use bank::{
    account::{Account, State},
    views::transactions,
};
use ledgerline::{Commit, Consistency, EventStore, StreamId, load};
use ledgerline_dynamodb::DynamoDbStore;
use local::testing;
use serde_json::{Value, json};
use tokio::sync::OwnedMutexGuard;

/// Held by the stack that runs. A stack is a process for each function, and two of them on two cores would leave to chance
/// whether a function meets the deadlines that Lambda and its own client have for it.
static ONE_AT_A_TIME: LazyLock<Arc<tokio::sync::Mutex<()>>> = LazyLock::new(Arc::default);

pub(crate) struct Local {
    process: Child,
    lines: Arc<Mutex<Vec<String>>>,
    api: Api,
    /// Dropped last, when the process has ended.
    _turn: OwnedMutexGuard<()>,
}

impl Deref for Local {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Local {
    /// Starts the program in the repository and waits until it says that it is ready.
    pub(crate) async fn start(data: Option<&Path>) -> Self {
        Self::start_with(data, false).await
    }

    /// The same, and keeps what the functions write to their logs.
    pub(crate) async fn start_with_logs() -> Self {
        Self::start_with(None, true).await
    }

    async fn start_with(data: Option<&Path>, logs: bool) -> Self {
        let turn = Arc::clone(&ONE_AT_A_TIME).lock_owned().await;
        let mut command = Command::new(env!("CARGO_BIN_EXE_local"));
        command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).args([
            "--port",
            "0",
            "--aws-address",
            "127.0.0.1:0",
        ]);
        // A message that failed comes again as soon as Lambda allows: waiting a minute for it proves nothing more.
        command.args(["--parameter-overrides", "QueueVisibilityTimeout=10"]);
        if let Some(data) = data {
            command.arg("--data").arg(data);
        }
        if logs {
            command.arg("--logs").stderr(Stdio::piped());
        }
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            process.stdout.take().map(|output| Box::new(output) as _),
            process.stderr.take().map(|output| Box::new(output) as _),
        ];
        for output in outputs.into_iter().flatten() {
            let seen = Arc::clone(&lines);
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    seen.lock().unwrap().push(line);
                }
            });
        }
        let mut this = Self { process, lines, api: Api::new(String::new(), None), _turn: turn };
        // The first start builds the functions.
        this.api.url = eventually_within(PATIENCE * 5, "the stack is ready", async || {
            assert!(this.process_runs(), "the stack ended");
            this.find(|line| {
                line.strip_prefix("Ready at ")
                    .and_then(|rest| rest.split_once(". "))
                    .map(|(url, _)| url.to_owned())
            })
        })
        .await;
        this
    }

    fn process_runs(&self) -> bool {
        Path::new(&format!("/proc/{}/exe", self.process.id())).exists() || !cfg!(target_os = "linux")
    }

    fn find<T>(&self, pick: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.lines.lock().unwrap().iter().find_map(|line| pick(line))
    }

    /// The sum of a metric that a function wrote, in CloudWatch's embedded metric format; of a histogram, how many values.
    pub(crate) fn metric(&self, function: &str, name: &str) -> u64 {
        let marker = format!("[{function}] ");
        let lines = self.lines.lock().unwrap();
        let written =
            lines.iter().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix(&marker)?).ok());
        written
            .filter(|line| {
                line["_aws"]["CloudWatchMetrics"][0]["Metrics"].to_string().contains(&format!("{name:?}"))
            })
            .map(|line| {
                line[name].as_array().map_or(line[name].as_u64().unwrap_or(0), |values| values.len() as u64)
            })
            .sum()
    }

    /// Kills the instances of a function that run now, as the kernel would when memory is short. Returns how many lines
    /// had been printed by then.
    pub(crate) fn kill_instances(&self, function: &str) -> usize {
        let marker = format!(" {function} started (pid ");
        let lines = self.lines.lock().unwrap();
        let pids = lines.iter().filter_map(|line| line.split_once(&marker)?.1.strip_suffix(')'));
        for pid in pids {
            // The pid may be another program's by now. Where there is no /proc to tell, it is still most likely ours.
            let executable = std::fs::read_link(format!("/proc/{pid}/exe"));
            if !cfg!(target_os = "linux") || executable.is_ok_and(|executable| executable.ends_with(function))
            {
                assert!(Command::new("kill").args(["-9", pid]).stderr(Stdio::null()).status().is_ok());
            }
        }
        lines.len()
    }

    /// Whether the function finished anything after this many lines.
    pub(crate) fn worked_since(&self, function: &str, line: usize) -> bool {
        self.lines.lock().unwrap()[line..].iter().any(|line| line.contains(function) && line.contains(" ms"))
    }

    /// Whether an invocation of the function was cut off by the end of its process.
    pub(crate) fn was_cut_off(&self, function: &str) -> bool {
        let marker = format!(" {function} failed: Runtime.ExitError");
        self.lines.lock().unwrap().iter().any(|line| line.contains(&marker))
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Where the emulated services are, as the program prints it.
    pub(crate) fn aws_url(&self) -> String {
        let url = self.find(|line| {
            let rest = line.trim().strip_prefix("AWS ")?.trim();
            rest.split_once(' ').map(|(url, _)| url.to_owned())
        });
        url.unwrap()
    }

    fn aws(&self) -> aws_config::SdkConfig {
        local::services::sdk_config(&self.aws_url())
    }

    /// The log itself, read from the emulated DynamoDB.
    pub(crate) fn store(&self) -> DynamoDbStore {
        let client = aws_sdk_dynamodb::Client::new(&self.aws());
        DynamoDbStore::new(client, testing::table("CommitsTable"))
    }

    /// Puts something into the log that is no commit.
    pub(crate) async fn damage(&self, stream: &str) {
        let client = aws_sdk_dynamodb::Client::new(&self.aws());
        let put = client.put_item().table_name(testing::table("CommitsTable"));
        let put = put
            .item("stream", AttributeValue::S(stream.into()))
            .item("version", AttributeValue::N("1".into()));
        put.send().await.unwrap();
    }

    /// What is in the fanout's dead-letter queue, if anything is.
    pub(crate) async fn dead_letter(&self) -> Option<Value> {
        let client = aws_sdk_sqs::Client::new(&self.aws());
        let name = testing::table("FanoutDeadLetterQueue");
        let url = client.get_queue_url().queue_name(name).send().await.unwrap().queue_url.unwrap();
        let received = client.receive_message().queue_url(url).send().await.unwrap();
        serde_json::from_str(received.messages?.first()?.body()?).ok()
    }

    /// How far a process manager got in a stream.
    pub(crate) async fn position(&self, table: &str, stream: &str) -> Option<u64> {
        let client = aws_sdk_dynamodb::Client::new(&self.aws());
        let get = client.get_item().table_name(testing::table(table)).consistent_read(true);
        let get = get
            .key("stream", AttributeValue::S(stream.into()))
            .key("entry", AttributeValue::S("#position".into()));
        get.send().await.unwrap().item?["position"].as_n().ok()?.parse().ok()
    }

    /// The commits of a stream as the fanout gets them from the table's stream.
    pub(crate) async fn stream_records(&self, stream: &str) -> Vec<Value> {
        let client = aws_sdk_dynamodb::Client::new(&self.aws());
        let query = client.query().table_name(testing::table("CommitsTable")).consistent_read(true);
        let query = query.key_condition_expression("#s = :s").expression_attribute_names("#s", "stream");
        let found = query.expression_attribute_values(":s", AttributeValue::S(stream.into())).send().await;
        let records = found.unwrap().items.unwrap().into_iter().enumerate().map(|(index, item)| {
            let image: Value = item.iter().map(|(name, value)| (name.clone(), wire_format(value))).collect();
            json!({
                "eventID": index.to_string(), "eventName": "INSERT", "eventVersion": "1.1",
                "eventSource": "aws:dynamodb", "awsRegion": "us-east-1", "eventSourceARN": "arn",
                "dynamodb": {
                    "ApproximateCreationDateTime": 0, "SizeBytes": 1, "StreamViewType": "NEW_IMAGE",
                    "Keys": { "stream": image["stream"], "version": image["version"] },
                    "NewImage": image, "SequenceNumber": (index + 1).to_string(),
                },
            })
        });
        records.collect()
    }

    pub(crate) async fn log(&self, id: &str) -> Vec<Commit> {
        let (store, stream) = (self.store(), StreamId::new("account", id).unwrap());
        let mut commits = Vec::new();
        while let Some(commit) = store.get(&stream, commits.len() as u64 + 1).await.unwrap() {
            commits.push(commit);
        }
        commits
    }

    pub(crate) async fn state(&self, id: &str) -> (u64, State) {
        let stream = StreamId::new("account", id).unwrap();
        let loaded = load::<Account>(&self.store(), &stream, None, Consistency::Strong).await.unwrap();
        (loaded.version, loaded.state)
    }

    /// Waits until both read models show the fold of the log, row by row.
    pub(crate) async fn settled(&self, id: &str) {
        let (version, state) = self.state(id).await;
        let commits = self.log(id).await;
        assert_eq!(commits.len() as u64, version, "no holes");
        let expected_rows: Vec<_> =
            commits.iter().flat_map(|commit| transactions::rows(commit).unwrap()).collect();
        let balance = eventually("the balance is shown", async || {
            let answer = self.get(&format!("/accounts/{id}")).await;
            (answer.body["version"].as_u64() == Some(version)).then_some(answer.body)
        })
        .await;
        let mut expected = json!(bank::views::balances::row(id, version, state));
        // What a row is listed by is nobody's to see.
        for hidden in ["openedBy", "listing"] {
            assert!(expected.as_object_mut().unwrap().remove(hidden).is_some());
        }
        assert_eq!(balance, expected);
        eventually("all transactions are shown", async || {
            let answer = self.get(&format!("/accounts/{id}/transactions")).await;
            (answer.etag() == Some(&format!("\"{version}\""))).then_some(())
        })
        .await;
        let mut shown = self.transactions(id).await;
        shown.reverse();
        let compared =
            |row: &Value| json!([row["version"], row["kind"], row["amount"], row["balance"], row["at"]]);
        let expected: Vec<_> = expected_rows.iter().map(|row| compared(&json!(row))).collect();
        assert_eq!(shown.iter().map(compared).collect::<Vec<_>>(), expected);
    }
}

/// A value as DynamoDB writes it on the wire, as far as commits have it.
#[expect(clippy::wildcard_enum_match_arm, reason = "commits hold nothing else")]
fn wire_format(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::S(text) => json!({ "S": text }),
        AttributeValue::N(number) => json!({ "N": number }),
        AttributeValue::L(values) => json!({ "L": values.iter().map(wire_format).collect::<Vec<_>>() }),
        AttributeValue::M(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), wire_format(value)));
            json!({ "M": fields.collect::<Value>() })
        }
        other => panic!("{other:?}"),
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.lines.lock().unwrap().join("\n"));
        }
    }
}
