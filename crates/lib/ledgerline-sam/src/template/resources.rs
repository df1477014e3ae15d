//! Resolves the resources of a template, and merges SAM's defaults and `Globals` into them.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{
    Bucket, Client, Cors, Event, Function, InvokeConfig, Located, ObjectRule, Queue, Resource,
    StartingPosition, StreamSource, Table, Template,
    intrinsics::{Scope, resource_type, stream_arn},
};
use crate::{
    lookup::{COMMITS, list, object_pattern},
    properties,
    yaml::{self, Kind, Node},
};

/// The logical ids of the policies of operators. One that continues another has a number.
pub(crate) const OPERATORS: [&str; 3] = ["OperatorReadPolicy", "OperatorPolicy", "ArchivePolicy"];

impl<'a> Scope<'a> {
    pub(super) fn resources(&self) -> Located<&'a [(String, Node)]> {
        Ok(self
            .root
            .get("Resources")
            .ok_or((self.root.line, "there are no Resources".to_owned()))?
            .entries())
    }

    /// Resolves all resources and returns what the local stack emulates.
    pub(super) fn read_template(&self) -> Located<Template> {
        let mut template = Template::default();
        for (name, globals) in self.root.get("Globals").map_or(&[][..], Node::entries) {
            let kind = format!("AWS::Serverless::{name}");
            let names = properties::not_emulated(&format!("Globals.{name}"), &kind, Some(globals));
            template.ignored_properties.extend(names);
        }
        for (id, resource) in self.resources()? {
            if !self.is_there(resource)? {
                continue;
            }
            match self.read_resource(id, resource, &mut template) {
                // The local stack names it, and runs the others.
                Err((_, message)) if resource.is_own() => template.ignored_properties.push(message),
                read => read?,
            }
        }
        Ok(template)
    }

    fn read_resource(&self, id: &str, resource: &Node, template: &mut Template) -> Located<()> {
        let kind = resource_type(id, resource)?;
        template.resources.push(Resource {
            id: id.to_owned(),
            // SAM transforms it into a Lambda function.
            kind: kind.replace("Serverless::Function", "Lambda::Function"),
            physical: self.physical(id, resource.line)?.reference,
        });
        let names = properties::not_emulated(id, kind, resource.get("Properties"));
        template.ignored_properties.extend(names);
        match kind {
            "AWS::Serverless::Function" => {
                let function =
                    self.read_function(id, resource, &mut template.ignored_properties)?;
                template.functions.push(function);
            }
            "AWS::DynamoDB::Table" => template.tables.push(self.table(id, resource)?),
            "AWS::SQS::Queue" => template.queues.push(self.queue(id, resource)?),
            "AWS::S3::Bucket" => template.buckets.push(self.bucket(id, resource)?),
            "AWS::Events::EventBus" => template.buses.push(self.physical(id, resource.line)?.name),
            "AWS::Serverless::HttpApi" => {
                template.audience = self.audience(id, resource)?;
                template.cors = self.cors(id, resource)?;
            }
            "AWS::Cognito::UserPool" => {
                let pool = self.properties(id, resource)?;
                let trigger = pool.descend(&["LambdaConfig", "PostConfirmation"]);
                template.sign_up = trigger.and_then(Node::as_str).map(ToOwned::to_owned);
                template.ignored.push((id.to_owned(), kind.to_owned()));
            }
            "AWS::Cognito::UserPoolClient" => template.clients.push(self.client(id, resource)?),
            "AWS::CloudFront::Distribution" => {
                if template.distribution.is_some() {
                    let message = format!("{id}: a second distribution is not emulated");
                    return Err((resource.line, message));
                }
                template.distribution = Some(self.distribution(id, resource)?);
            }
            // They are read with the distribution that names them, or with their bucket.
            "AWS::CloudFront::ResponseHeadersPolicy"
            | "AWS::CloudFront::OriginAccessControl"
            | "AWS::S3::BucketPolicy" => {}
            "AWS::IAM::ManagedPolicy" if OPERATORS.contains(&without_number(id)) => {
                let policy = self.properties(id, resource)?;
                let policy = policy.get("PolicyDocument").map(Node::to_json);
                template
                    .operators
                    .push((without_number(id).to_owned(), policy.unwrap_or_default()));
            }
            // They are read with the function that names them, in `role`.
            "AWS::IAM::ManagedPolicy" | "AWS::IAM::Role" | "AWS::IAM::RolePolicy" => {}
            "AWS::SNS::Subscription"
                if resource.get("Properties").and_then(|node| node.get("Protocol")?.as_str())
                    == Some("email") => {}
            "AWS::Events::Rule" => {
                let rule = object_rule(&self.properties(id, resource)?.to_json());
                let message = format!("{id}: AWS::Events::Rule is not emulated");
                template.object_rules.push(rule.ok_or((resource.line, message))?);
            }
            "AWS::Lambda::EventSourceMapping" => {
                let (function, source) = self.kinesis_source(id, resource)?;
                let mut functions = template.functions.iter_mut();
                let function = functions.find(|it| it.id == function);
                let message =
                    format!("`{id}` must be below its function in the template: move it there");
                let function = function.ok_or((resource.line, message))?;
                function.events.push(Event::Kinesis(source));
            }
            wiring @ ("AWS::Lambda::Function"
            | "AWS::Serverless::SimpleTable"
            | "AWS::SNS::Subscription") => {
                return Err((resource.line, format!("{id}: {wiring} is not emulated")));
            }
            other => template.ignored.push((id.to_owned(), other.to_owned())),
        }
        Ok(())
    }

    /// Whether the condition of a resource is true.
    pub(super) fn is_there(&self, resource: &Node) -> Located<bool> {
        resource.get("Condition").map_or(Ok(true), |condition| self.condition(condition))
    }

    /// Reads a function, and adds what is not emulated of one of the team's own.
    fn read_function(
        &self,
        id: &str,
        resource: &Node,
        ignored: &mut Vec<String>,
    ) -> Located<Function> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Properties {
            #[serde(default = "default_timeout")]
            timeout: u64,
            #[serde(default)]
            environment: Environment,
            #[serde(default)]
            event_invoke_config: InvokeConfig,
            #[serde(default)]
            logging_config: LoggingConfig,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "PascalCase")]
        struct LoggingConfig {
            #[serde(default)]
            application_log_level: Option<String>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "PascalCase")]
        struct Environment {
            #[serde(default)]
            variables: BTreeMap<String, Value>,
        }
        fn default_timeout() -> u64 {
            3
        }
        let binary = resource
            .get("Metadata")
            .and_then(|metadata| metadata.get("BuildProperties"))
            .and_then(|properties| properties.get("Binary"))
            .and_then(Node::as_str)
            .ok_or((resource.line, format!("{id} needs Metadata.BuildProperties.Binary")))?;
        let node =
            resource.get("Properties").ok_or((resource.line, format!("{id} has no Properties")))?;
        let globals = self.root.get("Globals").and_then(|globals| globals.get("Function"));
        let pick = |name: &str| -> Located<Option<Node>> {
            let own = node.get(name).map(|node| self.resolve(node)).transpose()?;
            let global = globals
                .and_then(|globals| globals.get(name))
                .map(|node| self.resolve(node))
                .transpose()?;
            Ok(match (own, global) {
                (Some(own), Some(global)) => Some(yaml::fill(own, &global)),
                (own, global) => own.or(global),
            })
        };
        let mut merged = Vec::new();
        for name in ["Timeout", "Environment", "EventInvokeConfig", "LoggingConfig"] {
            merged.extend(pick(name)?.map(|node| (name.to_owned(), node)));
        }
        let merged = Node::new(node.line, Kind::Map(merged));
        let properties: Properties = typed(&merged, id)?;
        // Lambda passes the level on in this variable.
        let level = properties.logging_config.application_log_level;
        let level = level.map(|level| ("AWS_LAMBDA_LOG_LEVEL".to_owned(), Value::String(level)));
        let environment = properties
            .environment
            .variables
            .into_iter()
            .chain(level)
            .map(|(name, value)| {
                (name, value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned))
            })
            .collect();
        let mut events = Vec::new();
        for (name, event) in node.get("Events").map_or(&[][..], Node::entries) {
            match self.read_event(&format!("{id}.Events.{name}"), name, event) {
                Err((_, message)) if resource.is_own() => ignored.push(message),
                event => events.push(event?),
            }
        }
        Ok(Function {
            id: id.to_owned(),
            binary: binary.to_owned(),
            arn: self.physical(id, resource.line)?.arn,
            environment,
            timeout: properties.timeout,
            invoke_config: properties.event_invoke_config,
            events,
            role: node.get("Role").map(|role| self.role(role)).transpose()?,
        })
    }

    /// The audience of the API's default authorizer; `None` if it has no authorizer. The local stack
    /// is the only issuer whose tokens it accepts.
    fn audience(&self, id: &str, resource: &Node) -> Located<Option<Vec<String>>> {
        let authorization =
            resource.get("Properties").and_then(|properties| properties.get("Auth"));
        let Some(authorization) = authorization else { return Ok(None) };
        let named =
            |name| authorization.get(name).map(|node: &Node| self.resolve(node)).transpose();
        let Some(default) = named("DefaultAuthorizer")?.and_then(|node| node.text()) else {
            return Ok(None);
        };
        let known =
            authorization.get("Authorizers").and_then(|authorizers| authorizers.get(&default));
        match known.and_then(|authorizer| authorizer.get("JwtConfiguration")) {
            Some(jwt) => {
                let audience =
                    jwt.get("audience").map(|audience| self.resolve(audience)).transpose()?;
                let names = audience.iter().flat_map(Node::items).filter_map(Node::text);
                Ok(Some(names.filter(|name| !name.is_empty()).collect()))
            }
            None => Err((
                authorization.line,
                format!("{id}: {default} is not a JWT authorizer, the only emulated kind"),
            )),
        }
    }

    /// Reads a client of the user pool.
    fn client(&self, id: &str, resource: &Node) -> Located<Client> {
        let properties = resource.get("Properties").map(|properties| self.resolve(properties));
        let properties = properties.transpose()?.map(|properties| properties.to_json());
        let properties = properties.unwrap_or_default();
        let texts = |name: &str| {
            let values = list(&properties[name]).into_iter().filter_map(Value::as_str);
            values.map(ToOwned::to_owned).collect()
        };
        let number = &properties["AccessTokenValidity"];
        let number = number.as_i64().or_else(|| number.as_str()?.parse().ok()).unwrap_or(1);
        let unit = properties["TokenValidityUnits"]["AccessToken"].as_str().unwrap_or("hours");
        let seconds = match unit {
            "seconds" => 1,
            "minutes" => 60,
            "days" => 86_400,
            _ => 3_600,
        };
        Ok(Client {
            id: id.to_owned(),
            callbacks: texts("CallbackURLs"),
            logouts: texts("LogoutURLs"),
            scopes: texts("AllowedOAuthScopes"),
            flows: texts("AllowedOAuthFlows"),
            access_seconds: number * seconds,
        })
    }

    /// The API's `CorsConfiguration`; `None` without one, or without a value.
    fn cors(&self, id: &str, resource: &Node) -> Located<Option<Cors>> {
        let globals = self.root.get("Globals").and_then(|globals| globals.get("HttpApi"));
        let configuration = [resource.get("Properties"), globals];
        let mut configuration = configuration.into_iter().flatten();
        let Some(configuration) = configuration.find_map(|node| node.get("CorsConfiguration"))
        else {
            return Ok(None);
        };
        let chosen = self.chosen(configuration)?;
        if chosen.is_no_value() {
            return Ok(None);
        }
        let resolved = self.resolve(chosen)?;
        if let Kind::Scalar(_) = resolved.kind {
            let message = format!("{id}: CorsConfiguration has no AllowOrigins: name the origins");
            return Err((configuration.line, message));
        }
        typed(&resolved, &format!("{id}: CorsConfiguration")).map(Some)
    }

    fn read_event(&self, place: &str, name: &str, event: &Node) -> Located<Event> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase", deny_unknown_fields)]
        struct Route {
            method: String,
            path: String,
            #[serde(default)]
            #[expect(dead_code, reason = "there is one API here")]
            api_id: Option<String>,
            #[serde(default)]
            auth: Authorization,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "PascalCase", deny_unknown_fields)]
        struct Authorization {
            #[serde(default)]
            authorization_scopes: Vec<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase", deny_unknown_fields)]
        struct Schedule {
            schedule: String,
        }
        let kind = event
            .get("Type")
            .and_then(Node::as_str)
            .ok_or((event.line, format!("{place} has no Type")))?;
        let properties =
            event.get("Properties").ok_or((event.line, format!("{place} has no Properties")))?;
        let properties = self.resolve(properties)?;
        match kind {
            "HttpApi" => {
                let route: Route = typed(&properties, place)?;
                if route.path.contains("+}") || !route.path.starts_with('/') {
                    return Err((
                        event.line,
                        format!("{place}: the path {} is not emulated", route.path),
                    ));
                }
                Ok(Event::HttpApi {
                    method: route.method.to_uppercase(),
                    path: route.path,
                    scopes: route.auth.authorization_scopes,
                })
            }
            "DynamoDB" => {
                let source: StreamSource = typed(&properties, place)?;
                match source.starting_position {
                    StartingPosition::TrimHorizon => Ok(Event::Stream(source)),
                    StartingPosition::Latest => Err((
                        event.line,
                        format!("{place}: LATEST leaves out commits: write TRIM_HORIZON"),
                    )),
                }
            }
            "SQS" => Ok(Event::Queue(typed(&properties, place)?)),
            "Schedule" => {
                let schedule: Schedule = typed(&properties, place)?;
                let message =
                    || format!("{place}: the schedule {} is not emulated", schedule.schedule);
                Ok(Event::Schedule(
                    rate(&schedule.schedule).ok_or_else(|| (event.line, message()))?,
                ))
            }
            "EventBridgeRule" => {
                Ok(Event::Rule { name: name.to_owned(), rule: typed(&properties, place)? })
            }
            other => Err((event.line, format!("{place}: events of type {other} are not emulated"))),
        }
    }

    /// Reads a mapping of the log's Kinesis stream to a function. Returns the function, too.
    fn kinesis_source(&self, id: &str, resource: &Node) -> Located<(String, StreamSource)> {
        let name = |node: &Node| {
            let reference = node.descend(&["Properties", "FunctionName", "Ref"])?.as_str()?;
            Some(reference.split('.').next()?.to_owned())
        };
        let mut properties = self.properties(id, resource)?;
        if let Kind::Map(entries) = &mut properties.kind {
            entries.retain(|(name, _)| name != "FunctionName");
            let stream = entries.iter_mut().find(|(name, _)| name == "EventSourceArn");
            stream.into_iter().for_each(|(name, _)| "Stream".clone_into(name));
        }
        let source: StreamSource = typed(&properties, id)?;
        let log = self.resources()?.iter().find(|(id, _)| id == COMMITS);
        let log = log.map(|(id, table)| self.properties(id, table)).transpose()?;
        let stream = log
            .as_ref()
            .and_then(|log| log.descend(&["KinesisStreamSpecification", "StreamArn"])?.as_str());
        match name(resource).filter(|_| stream == Some(&source.stream)) {
            Some(function) => Ok((function, source)),
            None => Err((
                resource.line,
                format!(
                    "{id}: AWS::Lambda::EventSourceMapping is emulated only for the Kinesis \
                     stream of the log, and a function by `!Ref`"
                ),
            )),
        }
    }

    fn table(&self, id: &str, resource: &Node) -> Located<Table> {
        let properties = self.properties(id, resource)?;
        let physical = self.physical(id, resource.line)?;
        let mut create = Map::from_iter([("TableName".to_owned(), json!(physical.name))]);
        for name in
            ["AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "LocalSecondaryIndexes"]
        {
            if let Some(node) = properties.get(name) {
                create.insert(name.into(), node.to_json());
            }
        }
        create.insert("BillingMode".into(), json!("PAY_PER_REQUEST"));
        let stream =
            properties.get("StreamSpecification").and_then(|stream| stream.get("StreamViewType"));
        if let Some(view) = stream.and_then(Node::as_str) {
            create.insert(
                "StreamSpecification".into(),
                json!({ "StreamEnabled": true, "StreamViewType": view }),
            );
        }
        let time_to_live = properties
            .get("TimeToLiveSpecification")
            .filter(|specification| {
                specification.get("Enabled").and_then(Node::text).as_deref() == Some("true")
            })
            .and_then(|specification| specification.get("AttributeName"))
            .and_then(Node::text);
        Ok(Table {
            id: id.to_owned(),
            stream_arn: stream.map(|_| stream_arn(&physical.arn)),
            name: physical.name,
            create: Value::Object(create),
            time_to_live,
            policy: properties
                .get("ResourcePolicy")
                .and_then(|policy| policy.get("PolicyDocument"))
                .map(Node::to_json),
        })
    }

    fn bucket(&self, id: &str, resource: &Node) -> Located<Bucket> {
        let mut policy = None;
        for (other, it) in self.resources()? {
            let bucket = it.descend(&["Properties", "Bucket", "Ref"]).and_then(Node::as_str);
            if resource_type(other, it)? == "AWS::S3::BucketPolicy"
                && bucket == Some(id)
                && self.is_there(it)?
            {
                policy = self.properties(other, it)?.get("PolicyDocument").map(Node::to_json);
            }
        }
        Ok(Bucket { name: self.physical(id, resource.line)?.name, policy })
    }

    fn queue(&self, id: &str, resource: &Node) -> Located<Queue> {
        let properties = self.properties(id, resource)?;
        let mut attributes = HashMap::new();
        for name in [
            "FifoQueue",
            "ContentBasedDeduplication",
            "DeduplicationScope",
            "FifoThroughputLimit",
            "VisibilityTimeout",
            "DelaySeconds",
            "MaximumMessageSize",
            "MessageRetentionPeriod",
            "ReceiveMessageWaitTimeSeconds",
        ] {
            if let Some(value) = properties.get(name).and_then(Node::text) {
                attributes.insert(name.to_owned(), value);
            }
        }
        if let Some(policy) = properties.get("RedrivePolicy") {
            attributes.insert("RedrivePolicy".into(), policy.to_json().to_string());
        }
        let physical = self.physical(id, resource.line)?;
        Ok(Queue { name: physical.name, arn: physical.arn, attributes })
    }

    pub(super) fn properties(&self, id: &str, resource: &Node) -> Located<Node> {
        match resource.get("Properties") {
            Some(properties) => self.resolve(properties),
            None => Err((resource.line, format!("{id} has no Properties"))),
        }
    }
}

/// Returns the rule, if it sends the new objects of a bucket, with keys that begin with a prefix, to
/// one queue, and does nothing else.
fn object_rule(rule: &Value) -> Option<ObjectRule> {
    let pattern = &rule["EventPattern"];
    let (bucket, prefix) =
        (&pattern["detail"]["bucket"]["name"][0], &pattern["detail"]["object"]["key"][0]["prefix"]);
    let [target] = rule["Targets"].as_array()?.as_slice() else { return None };
    let is_plain = *pattern == object_pattern(bucket, prefix) && target.as_object()?.len() == 2;
    let others = ["EventBusName", "ScheduleExpression"];
    let is_enabled = rule["State"].is_null() || rule["State"] == "ENABLED";
    let names_others = !is_enabled || others.iter().any(|it| !rule[*it].is_null());
    Some(ObjectRule {
        bucket: bucket.as_str()?.to_owned(),
        prefix: prefix.as_str()?.to_owned(),
        queue: target["Arn"].as_str().filter(|_| is_plain && !names_others)?.to_owned(),
    })
}

/// The id of the policy that a policy continues: that of `OperatorPolicy2` is `OperatorPolicy`.
fn without_number(id: &str) -> &str {
    id.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// The time in an expression of a schedule: `rate(5 minutes)`.
fn rate(expression: &str) -> Option<Duration> {
    let (number, unit) = expression.strip_prefix("rate(")?.strip_suffix(')')?.split_once(' ')?;
    let seconds = match unit.trim_end_matches('s') {
        "minute" => 60,
        "hour" => 3_600,
        "day" => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok().filter(|number| *number > 0)? * seconds))
}

/// Deserializes a resolved node. An error has the line of the part that cannot be read.
fn typed<T: DeserializeOwned>(node: &Node, place: &str) -> Located<T> {
    serde_path_to_error::deserialize(node.to_json()).map_err(|error| {
        (node.closest(error.path()).line, format!("{place}.{}: {}", error.path(), error.inner()))
    })
}
