//! The access log of the HTTP API: a line for each request, in the format of the template.
//!
//! Source: the API Gateway developer guide, "Customize HTTP API access logs".

use jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;

use crate::operations::Logs;

/// The log stream of the lines. On AWS, it is one of many log streams, whose names say nothing
/// about the request.
const STREAM: &str = "api";

/// The access log of the HTTP API.
#[derive(Debug)]
pub(crate) struct AccessLog {
    /// The name of the log group.
    pub(crate) group: String,
    format: String,
    pub(crate) logs: Logs,
}

/// The fields of an answered request that its line shows.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) ip: String,
    /// The key of the route; empty if no route matches.
    pub(crate) route: String,
    /// The subject of the caller. Empty for an API without an authorizer, and for a caller whom the
    /// authorizer refuses.
    pub(crate) sub: String,
    /// The error of the function, if its invocation failed.
    pub(crate) integration_error: String,
}

impl AccessLog {
    /// Returns the access log of the template's HTTP API, if the API has one.
    pub(crate) fn from_template(template: &Value) -> Option<Self> {
        let mut resources = template["Resources"].as_object()?.values();
        let api = resources.find(|resource| resource["Type"] == "AWS::Serverless::HttpApi")?;
        let settings = &api["Properties"]["AccessLogSettings"];
        let arn = &settings["DestinationArn"]["Fn::GetAtt"];
        let arn = arn.as_str().or(arn[0].as_str())?;
        let group = arn.split('.').next().unwrap_or(arn).to_owned();
        Some(Self { group, format: settings["Format"].as_str()?.to_owned(), logs: Logs::default() })
    }

    /// Adds the line of a request. As on AWS, a variable without a value becomes a dash.
    pub(crate) fn add(&self, request: &Request, status: u16, latency: u128) {
        let now =
            Timestamp::now().to_zoned(TimeZone::UTC).strftime("%d/%b/%Y:%H:%M:%S %z").to_string();
        let (status, latency) = (status.to_string(), latency.to_string());
        // A value may have the form of a variable, so only the text of the format is searched.
        let mut parts = self.format.split("$context.");
        let mut line = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
            let (name, rest) = part.split_at(part.find(|c| !is_name(c)).unwrap_or(part.len()));
            let value = match name {
                "requestId" => &request.id,
                "requestTime" => &now,
                "identity.sourceIp" => &request.ip,
                "authorizer.claims.sub" => &request.sub,
                "routeKey" => &request.route,
                "status" => &status,
                "responseLatency" => &latency,
                "integrationErrorMessage" => &request.integration_error,
                _ => "",
            };
            let value = if value.is_empty() { "-" } else { value };
            // The format encloses texts in quotation marks, which a value must not end early.
            line += &value.replace(['"', '\\', '\n'], " ");
            line += rest;
        }
        self.logs.add(STREAM, &line);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn log(settings: &Value) -> Option<AccessLog> {
        let api = json!({ "Type": "AWS::Serverless::HttpApi", "Properties": { "AccessLogSettings": settings } });
        AccessLog::from_template(
            &json!({ "Resources": { "Logs": { "Type": "AWS::Logs::LogGroup" }, "Api": api } }),
        )
    }

    #[test]
    fn a_line_has_the_format_of_the_template() {
        let format = r#"{"route":"$context.routeKey","status":$context.status,"sub":"$context.authorizer.claims.sub","error":"$context.integrationErrorMessage","length":"$context.responseLength"}"#;
        let arn = json!({ "Fn::GetAtt": ["Logs", "Arn"] });
        let access = log(&json!({ "DestinationArn": arn, "Format": format })).unwrap();
        assert_eq!(access.group, "Logs");
        let request = Request {
            route: "GET /tanks".into(),
            sub: "$context.status".into(),
            integration_error: r#"it said "no""#.into(),
            ..Request::default()
        };
        access.add(&request, 503, 7);
        let found = access.logs.filter(br#"{"filterPattern":"{ $.status = 503 }"}"#).unwrap();
        let line: Value =
            serde_json::from_str(found["events"][0]["message"].as_str().unwrap()).unwrap();
        let expected = json!({ "route": "GET /tanks", "status": 503, "sub": "$context.status", "error": "it said  no ", "length": "-" });
        assert_eq!(line, expected);
    }

    #[test]
    fn an_api_without_settings_has_no_access_log() {
        assert!(log(&Value::Null).is_none());
    }
}
