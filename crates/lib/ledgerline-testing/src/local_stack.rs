//! A local stack as a user starts it: the program itself, on free ports.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Read},
    ops::Deref,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use aws_sdk_dynamodb::types::AttributeValue;
use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::{Timestamp, civil};
use ledgerline_dynamodb::DynamoDbStore;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Api,
    api_client::{eventually, note},
    table, workspace,
};
use ledgerline_local::postgres::is_postgres_installed;
use ledgerline_sam::template;

/// The turns that running stacks hold. Several stacks run at once, because most tests mostly wait.
/// A stack has a process for each function. With more stacks on two cores, functions would meet the
/// deadlines of Lambda and of their clients only by chance.
static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(ALL as usize)));
const ALL: u32 = 3;
const ONE: u32 = 1;

/// The values of parameters that a template may have. The visibility timeout is as short as Lambda
/// allows, because a wait of a minute for a retry would prove nothing more. Without a value, the
/// stack would have a web app where a developer has built one.
const PARAMETERS: [(&str, &str); 2] = [("QueueVisibilityTimeout", "10"), ("WebApp", "false")];

/// A local stack for one test. A drop of the value kills it.
#[derive(Debug)]
pub struct LocalStack {
    process: Child,
    lines: Arc<Mutex<Vec<String>>>,
    api: Api,
    /// Dropped last, when the process has exited.
    turns: OwnedSemaphorePermit,
}

impl Deref for LocalStack {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

/// Whether tests can start a PostgreSQL server. With `LEDGERLINE_POSTGRES=required`, as in CI, a
/// missing server is a failure of the test that needs it.
pub fn has_postgres() -> bool {
    if is_postgres_installed() || std::env::var_os("LEDGERLINE_POSTGRES").is_some() {
        return true;
    }
    eprintln!(
        "no PostgreSQL server is installed, so a part of the test is left out: install Debian's `postgresql`"
    );
    false
}

impl LocalStack {
    /// Starts the program `local` of the workspace, and waits until it prints that it is ready.
    pub async fn start(data: Option<&Path>) -> Self {
        Self::start_with(data, &[], &[], ONE).await
    }

    /// Starts a stack with the stores of all views, if a PostgreSQL server is installed or not
    /// needed. Returns whether the stack has all functions of the template.
    pub async fn start_whole() -> (Self, bool) {
        let template = template::tree(&workspace().join("template.yaml")).unwrap();
        let stores = template::store_options(&template["Parameters"]);
        match !stores.contains(&"--postgres") || has_postgres() {
            true => (Self::start_as(&stores).await, true),
            false => (Self::start(None).await, false),
        }
    }

    /// Starts a stack for a test that loads the machine. No other stack runs at the same time,
    /// except one after [`quiet_from_now`](Self::quiet_from_now).
    pub async fn start_busy(data: Option<&Path>) -> Self {
        Self::start_with(data, &[], &[], ALL).await
    }

    /// Starts a stack with these variables in the environment of the program.
    pub async fn start_in(data: &Path, environment: &[(&str, OsString)]) -> Self {
        Self::start_with(Some(data), &[], environment, ONE).await
    }

    /// Starts a stack with these arguments of the program. With `--logs`, the value stores the logs
    /// of the functions.
    pub async fn start_as(arguments: &[&str]) -> Self {
        Self::start_with(None, arguments, &[], ONE).await
    }

    async fn start_with(
        data: Option<&Path>,
        arguments: &[&str],
        environment: &[(&str, OsString)],
        turns: u32,
    ) -> Self {
        let turns = Arc::clone(&TURNS).acquire_many_owned(turns).await.unwrap();
        let workspace = workspace();
        let mut command = super::command("local");
        command.current_dir(&workspace).args(["--port", "0", "--aws-address", "127.0.0.1:0"]);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let template = template::tree(&workspace.join("template.yaml")).unwrap();
        for (parameter, value) in PARAMETERS {
            if !template["Parameters"][parameter].is_null() {
                command.args(["--parameter-overrides", &format!("{parameter}={value}")]);
            }
        }
        if let Some(data) = data {
            command.arg("--data").arg(data);
        }
        command.args(arguments);
        if arguments.contains(&"--logs") {
            command.stderr(Stdio::piped());
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
                    note(&line);
                    seen.lock().unwrap().push(line);
                }
            });
        }
        let mut this = Self { process, lines, api: Api::new(String::new(), None), turns };
        this.api.url = eventually("the stack is ready", async || {
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

    /// Releases the turns: the rest of the test is quiet, and a busy stack may run at the same
    /// time.
    pub fn quiet_from_now(&mut self) {
        let all = self.turns.num_permits();
        drop(self.turns.split(all));
    }

    fn process_runs(&self) -> bool {
        Path::new(&format!("/proc/{}/exe", self.process.id())).exists()
            || !cfg!(target_os = "linux")
    }

    fn find<T>(&self, pick: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.lines.lock().unwrap().iter().find_map(|line| pick(line))
    }

    /// Returns the sum of a function's measurements under this name. Each line has a number, or the
    /// largest of several times.
    pub fn measured(&self, function: &str, name: &str) -> f64 {
        self.values(function, name).iter().sum()
    }

    /// Returns the address of the database that the stack has started.
    pub fn database_url(&self) -> String {
        self.find(|line| line.strip_prefix("  database     ").map(ToOwned::to_owned)).unwrap()
    }

    /// Returns the address of the server in the place of OpenSearch that the stack has started.
    pub fn search_url(&self) -> String {
        self.find(|line| line.strip_prefix("  search       ").map(ToOwned::to_owned)).unwrap()
    }

    /// Returns the number of lines with a measurement of a function under this name. A sum of times
    /// proves nothing: one slow commit has as many milliseconds as many fast ones.
    pub fn measured_lines(&self, function: &str, name: &str) -> usize {
        self.values(function, name).len()
    }

    fn values(&self, function: &str, name: &str) -> Vec<f64> {
        let marker = format!("[{function}] ");
        let lines = self.lines.lock().unwrap();
        let written = lines
            .iter()
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix(&marker)?).ok());
        written.filter_map(|line| line[name].as_f64()).collect()
    }

    /// Returns the lines of the functions' log that match a filter pattern of CloudWatch Logs.
    pub async fn logged(&self, pattern: &str) -> Vec<Value> {
        let lines = self.lines_of("FunctionLogs", pattern, Timestamp::UNIX_EPOCH).await;
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// Returns the lines of a log group from this time on that match a filter pattern. Each has the
    /// name of its log stream, which is the function's binary.
    pub async fn lines_of(
        &self,
        group: &str,
        pattern: &str,
        since: Timestamp,
    ) -> Vec<(String, Value)> {
        let filter = json!({
            "logGroupName": group, "filterPattern": pattern, "startTime": since.as_millisecond(),
        });
        let request = ledgerline_local::http_client().post(self.aws_url()).json(&filter);
        let request = request.header("x-amz-target", "Logs_20140328.FilterLogEvents");
        let found: Value = request.send().await.unwrap().json().await.unwrap();
        let line = |line: &Value| {
            let message =
                serde_json::from_str(line["message"].as_str().unwrap()).unwrap_or_default();
            (line["logStreamName"].as_str().unwrap().to_owned(), message)
        };
        found["events"].as_array().unwrap().iter().map(line).collect()
    }

    /// Returns the hops that the stack printed: the time of day in UTC, the name and the text of
    /// each.
    pub fn hops(&self) -> Vec<(civil::Time, String, String)> {
        let hop = |line: &String| {
            let (time, rest) = line.split_once("  ")?;
            let (name, text) = rest.split_once(' ')?;
            Some((time.parse().ok()?, name.to_owned(), text.trim_start().to_owned()))
        };
        self.lines.lock().unwrap().iter().filter_map(hop).collect()
    }

    /// Makes a resource fail for this number of seconds, as `POST /outages` does. `answer` is
    /// `failed` or `throttled`.
    pub async fn begin_outage(&self, of: &str, answer: &str, seconds: u32) {
        let outage = json!({ "of": of, "answer": answer, "seconds": seconds });
        let request = ledgerline_local::http_client().post(format!("{}/outages", self.aws_url()));
        let begun = request.json(&outage).send().await.unwrap();
        assert!(begun.status().is_success(), "{begun:?}");
    }

    /// Invokes a function by its logical id, and returns its response or its error.
    pub async fn invoke(&self, function: &str, event: &Value) -> Value {
        let url = format!("{}/2015-03-31/functions/{function}/invocations", self.aws_url());
        let request = ledgerline_local::http_client().post(url).json(event);
        request.send().await.unwrap().json().await.unwrap()
    }

    /// Kills the running instances of a function, as the kernel would when memory is short.
    /// `function` is the name of the binary. Returns the number of lines that the stack has printed
    /// by then.
    pub fn kill_instances(&self, function: &str) -> usize {
        let marker = format!(" {function} started (pid ");
        let lines = self.lines.lock().unwrap();
        // With a wrong name, a test would kill no process and not notice it.
        assert!(
            lines.iter().any(|line| line.contains(&marker)),
            "no binary named {function} was started"
        );
        let pids = lines.iter().filter_map(|line| line.split_once(&marker)?.1.strip_suffix(')'));
        for pid in pids {
            // Another program may have the pid. Without /proc the test cannot see this, but most
            // likely the pid is still that of an instance. Least likely, it is an instance of the
            // same function in another stack.
            let executable = std::fs::read_link(format!("/proc/{pid}/exe"));
            if !cfg!(target_os = "linux")
                || executable.is_ok_and(|executable| executable.ends_with(function))
            {
                assert!(
                    Command::new("kill").args(["-9", pid]).stderr(Stdio::null()).status().is_ok()
                );
            }
        }
        lines.len()
    }

    /// Whether the function finished any work after this many lines.
    pub fn worked_since(&self, function: &str, line: usize) -> bool {
        self.lines.lock().unwrap()[line..]
            .iter()
            .any(|line| line.contains(function) && line.contains(" ms"))
    }

    /// Whether the exit of its process cut off an invocation of the function.
    pub fn was_cut_off(&self, function: &str) -> bool {
        let marker = format!(" {function} failed: Runtime.ExitError");
        self.lines.lock().unwrap().iter().any(|line| line.contains(&marker))
    }

    /// Repeats some work until a killed instance of a function has cut off an invocation.
    pub async fn cut_off_during(&self, function: &str, mut work: impl AsyncFnMut()) {
        let repeat = async {
            while !self.was_cut_off(function) {
                work().await;
            }
        };
        let kill = async {
            let mut line = 0;
            while !self.was_cut_off(function) {
                eventually("the function works on a batch", async || {
                    self.worked_since(function, line).then_some(())
                })
                .await;
                line = self.kill_instances(function);
                eventually("the stack sees that the process is gone", async || {
                    (self.was_cut_off(function) || self.worked_since(function, line)).then_some(())
                })
                .await;
            }
        };
        tokio::join!(repeat, kill);
    }

    /// Kills the stack, as a power cut would.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Returns the URL of the HTTP API.
    pub fn url(&self) -> &str {
        &self.api.url
    }

    /// Returns the id of the stack's own process.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the URL of the emulated services, as the program prints it.
    pub fn aws_url(&self) -> String {
        let url = self.find(|line| {
            let rest = line.trim().strip_prefix("AWS ")?.trim();
            rest.split_once(' ').map(|(url, _)| url.to_owned())
        });
        url.unwrap()
    }

    fn aws(&self) -> aws_config::SdkConfig {
        ledgerline_dynamodb::sdk_config(&self.aws_url())
    }

    /// Returns the log itself, read from the emulated DynamoDB and the bucket of body objects.
    pub fn store(&self) -> DynamoDbStore {
        let bucket = table("CommitsTable").replace("CommitsTable", "BodiesBucket").to_lowercase();
        let log = self.streams("CommitsTable");
        ledgerline_s3::open(log, &self.aws(), &bucket, usize::MAX)
    }

    /// Makes functions use their copies of the generations of a view for a second, and not for ten.
    /// `view` is its key, such as `postgres/fills`.
    pub async fn refresh_generations_each_second(&self, view: &str) {
        let put = aws_sdk_dynamodb::Client::new(&self.aws()).put_item();
        let put = put.table_name(table("ViewsTable")).item("view", AttributeValue::S(view.into()));
        let put = put.item("entry", AttributeValue::S("$generations".into()));
        put.item("$fresh", AttributeValue::N("1".into())).send().await.unwrap();
    }

    /// Returns the streams in the table with this logical id.
    pub fn streams(&self, id: &str) -> DynamoDbStore {
        DynamoDbStore::new(aws_sdk_dynamodb::Client::new(&self.aws()), table(id))
    }

    /// Inserts an item that is no commit into the log. A statement inserts it, because the table's
    /// policy denies `PutItem` to every caller (rule 3).
    pub async fn damage(&self, stream: &str) {
        let client = aws_sdk_dynamodb::Client::new(&self.aws());
        let statement = format!(
            r#"INSERT INTO "{}" VALUE {{'stream': ?, 'version': ?}}"#,
            table("CommitsTable")
        );
        let insert = client.execute_statement().statement(statement);
        let insert = insert
            .parameters(AttributeValue::S(stream.into()))
            .parameters(AttributeValue::N("1".into()));
        insert.send().await.unwrap();
    }

    /// Returns the first message in the fanout's dead-letter queue, if there is one.
    pub async fn dead_letter(&self) -> Option<Value> {
        let client = aws_sdk_sqs::Client::new(&self.aws());
        let name = table("FanoutDeadLetterQueue");
        let url = client.get_queue_url().queue_name(name).send().await.unwrap().queue_url.unwrap();
        let received = client.receive_message().queue_url(url).send().await.unwrap();
        serde_json::from_str(received.messages?.first()?.body()?).ok()
    }

    /// Returns the messages in all dead-letter queues, at most ten of each, with the URLs of their
    /// queues.
    pub async fn dead_letters(&self) -> Vec<(String, String)> {
        let client = aws_sdk_sqs::Client::new(&self.aws());
        let queues = client.list_queues().send().await.unwrap().queue_urls.unwrap_or_default();
        let mut letters = Vec::new();
        for url in queues.into_iter().filter(|url| url.contains("DeadLetterQueue")) {
            let receive = client.receive_message().queue_url(&url).max_number_of_messages(10);
            let received = receive.send().await.unwrap().messages.unwrap_or_default();
            letters.extend(
                received.into_iter().map(|letter| (url.clone(), letter.body.unwrap_or_default())),
            );
        }
        letters
    }

    /// Loses the messages that wait in this queue. SQS allows that once in a minute; until then,
    /// nothing more is lost.
    pub async fn lose_messages(&self, id: &str) {
        let client = aws_sdk_sqs::Client::new(&self.aws());
        let url = client.get_queue_url().queue_name(table(id)).send().await.unwrap().queue_url;
        let purged = client.purge_queue().set_queue_url(url).send().await;
        if let Err(error) = purged.map_err(aws_sdk_sqs::error::SdkError::into_service_error) {
            assert!(error.is_purge_queue_in_progress(), "{error:?}");
        }
    }

    /// Returns the queues with messages, waiting or in flight, and their numbers of messages. It
    /// leaves out the dead-letter queues.
    pub async fn under_way(&self) -> Vec<(String, u64)> {
        let client = aws_sdk_sqs::Client::new(&self.aws());
        let queues = client.list_queues().send().await.unwrap().queue_urls.unwrap_or_default();
        let mut under_way = Vec::new();
        for url in queues.into_iter().filter(|url| !url.contains("DeadLetterQueue")) {
            let get = client
                .get_queue_attributes()
                .queue_url(&url)
                .attribute_names(aws_sdk_sqs::types::QueueAttributeName::All);
            // A queue without a response may have messages.
            let messages: u64 = get.send().await.map_or(1, |answer| {
                let attributes = answer.attributes.unwrap_or_default();
                let counts = attributes
                    .iter()
                    .filter(|(name, _)| name.as_str().starts_with("ApproximateNumber"));
                counts.filter_map(|(_, count)| count.parse::<u64>().ok()).sum()
            });
            if messages > 0 {
                under_way.push((url, messages));
            }
        }
        under_way
    }

    /// Returns the position of a process manager in a stream, from its table with this logical id.
    pub async fn position(&self, id: &str, stream: &str) -> Option<u64> {
        let client = aws_sdk_dynamodb::Client::new(&self.aws());
        let get = client.get_item().table_name(table(id)).consistent_read(true);
        let get = get
            .key("stream", AttributeValue::S(stream.into()))
            .key("entry", AttributeValue::S("#position".into()));
        get.send().await.unwrap().item?["position"].as_n().ok()?.parse().ok()
    }

    /// Returns the commits of a stream as the fanout gets them from the table's stream.
    pub async fn stream_records(&self, stream: &str) -> Vec<Value> {
        let client = aws_sdk_dynamodb::Client::new(&self.aws());
        let query = client.query().table_name(table("CommitsTable")).consistent_read(true);
        let query =
            query.key_condition_expression("#s = :s").expression_attribute_names("#s", "stream");
        let found =
            query.expression_attribute_values(":s", AttributeValue::S(stream.into())).send().await;
        let records = found.unwrap().items.unwrap().into_iter().enumerate().map(|(index, item)| {
            let image: Value =
                item.iter().map(|(name, value)| (name.clone(), wire_format(value))).collect();
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
}

/// Returns a value in the wire format of DynamoDB, for the types of values that commits have.
#[expect(clippy::wildcard_enum_match_arm, reason = "commits hold nothing else")]
fn wire_format(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::S(text) => json!({ "S": text }),
        AttributeValue::N(number) => json!({ "N": number }),
        AttributeValue::B(bytes) => json!({ "B": BASE64_STANDARD.encode(bytes) }),
        AttributeValue::L(values) => {
            json!({ "L": values.iter().map(wire_format).collect::<Vec<_>>() })
        }
        AttributeValue::M(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), wire_format(value)));
            json!({ "M": fields.collect::<Value>() })
        }
        other => panic!("{other:?}"),
    }
}

impl Drop for LocalStack {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            // The lines go to a file, so that the failure is the last output of the test.
            let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
            let file =
                std::env::temp_dir().join(format!("ledgerline-stack-{}.log", self.process.id()));
            match std::fs::write(&file, lines) {
                Ok(()) => eprintln!("the log of the stack is in {}", file.display()),
                Err(error) => eprintln!("the log of the stack cannot be written: {error}"),
            }
        }
    }
}
