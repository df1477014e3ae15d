//! The distribution of a web app: its behaviours, and the headers that they add.
//!
//! Source: the CloudFormation reference, "AWS::CloudFront::ResponseHeadersPolicy".

use serde_json::Value;

use super::{
    Distribution, Located, PolicyHeader,
    intrinsics::{Scope, domain},
};
use crate::yaml::Node;

/// The headers of a distribution, with their fields in `SecurityHeadersConfig`.
const SECURITY: [(&str, &str, &str); 3] = [
    ("content-security-policy", "ContentSecurityPolicy", "ContentSecurityPolicy"),
    ("referrer-policy", "ReferrerPolicy", "ReferrerPolicy"),
    ("x-frame-options", "FrameOptions", "FrameOption"),
];

impl Scope<'_> {
    pub(super) fn distribution(&self, id: &str, resource: &Node) -> Located<Distribution> {
        let config =
            resource.get("Properties").and_then(|properties| properties.get("DistributionConfig"));
        let config = config.ok_or((resource.line, format!("{id} has no DistributionConfig")))?;
        let mut headers = Vec::new();
        for behaviour in config.get("CacheBehaviors").map_or(&[][..], Node::items) {
            let pattern = behaviour.get("PathPattern").and_then(Node::text);
            let pattern =
                pattern.ok_or((behaviour.line, format!("{id}: a behaviour has no PathPattern")))?;
            if pattern.trim_end_matches('*').contains(['*', '?']) {
                let message = format!("{id}: only an asterisk at the end of {pattern} is emulated");
                return Err((behaviour.line, message));
            }
            headers.push((pattern, self.added_headers(behaviour)?));
        }
        if let Some(behaviour) = config.get("DefaultCacheBehavior") {
            headers.push(("*".to_owned(), self.added_headers(behaviour)?));
        }
        Ok(Distribution { domain: domain(id), headers })
    }

    /// Returns the headers that a behaviour adds by its policy; none without a policy.
    fn added_headers(&self, behaviour: &Node) -> Located<Vec<PolicyHeader>> {
        let Some(policy) = behaviour.get("ResponseHeadersPolicyId") else { return Ok(Vec::new()) };
        let Some(id) = policy.get("Ref").and_then(Node::text) else {
            let message = "only a policy of the template is emulated: name it by !Ref";
            return Err((policy.line, message.to_owned()));
        };
        let policy = self.resources()?.iter().find(|(name, _)| *name == id);
        let (_, policy) = policy.ok_or((behaviour.line, format!("there is no resource {id}")))?;
        let config = policy
            .get("Properties")
            .and_then(|properties| properties.get("ResponseHeadersPolicyConfig"));
        // The name of the policy has the stack's id, which is unknown here. So only the parts
        // with headers are resolved.
        let part = |name: &str| -> Located<Value> {
            let node = config.and_then(|config| config.get(name));
            Ok(node
                .map(|node| self.resolve(node))
                .transpose()?
                .map_or(Value::Null, |node| node.to_json()))
        };
        let (security, custom) = (part("SecurityHeadersConfig")?, part("CustomHeadersConfig")?);
        let header = |name: &str, value: String, source: &Value| PolicyHeader {
            name: name.to_lowercase(),
            value,
            is_override: source["Override"] == true,
        };
        let mut headers = Vec::new();
        for (name, field, value) in SECURITY {
            let source = &security[field];
            if let Some(text) = source[value].as_str() {
                headers.push(header(name, text.to_owned(), source));
            }
        }
        let source = &security["ContentTypeOptions"];
        if !source.is_null() {
            headers.push(header("x-content-type-options", "nosniff".to_owned(), source));
        }
        let source = &security["StrictTransportSecurity"];
        if let Some(seconds) = source["AccessControlMaxAgeSec"].as_u64() {
            headers.push(header("strict-transport-security", format!("max-age={seconds}"), source));
        }
        for source in custom["Items"].as_array().into_iter().flatten() {
            if let (Some(name), Some(text)) = (source["Header"].as_str(), source["Value"].as_str())
            {
                headers.push(header(name, text.to_owned(), source));
            }
        }
        let is_kept = |header: &PolicyHeader| {
            header.name == "cache-control"
                && !["no-cache", "no-store"].contains(&header.value.as_str())
        };
        if headers.iter().any(is_kept) {
            let message = format!(
                "{id}: browsers would keep errors, which get this Cache-Control, too: give it to \
                 the files at their upload"
            );
            return Err((behaviour.line, message));
        }
        Ok(headers)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use crate::template::{PolicyHeader, Source};

    const TEMPLATE: &str = r#"
Resources:
  Pages:
    Type: AWS::CloudFront::Distribution
    Properties:
      DistributionConfig:
        DefaultCacheBehavior: { ResponseHeadersPolicyId: !Ref PageHeaders }
        CacheBehaviors:
          - { PathPattern: assets/*, ResponseHeadersPolicyId: !Ref AssetHeaders }
          - { PathPattern: x }
  PageHeaders:
    Type: AWS::CloudFront::ResponseHeadersPolicy
    Properties:
      ResponseHeadersPolicyConfig:
        Name: !Ref AWS::StackId
        SecurityHeadersConfig:
          ContentSecurityPolicy:
            ContentSecurityPolicy: !Sub "connect-src https://${AWS::Region}.example"
          ContentTypeOptions: { Override: true }
          FrameOptions: { FrameOption: DENY, Override: true }
          StrictTransportSecurity: { AccessControlMaxAgeSec: 60 }
  AssetHeaders:
    Type: AWS::CloudFront::ResponseHeadersPolicy
    Properties:
      ResponseHeadersPolicyConfig:
        CustomHeadersConfig: { Items: [{ Header: Cache-Control, Value: no-store, Override: false }] }
  App:
    Type: AWS::Cognito::UserPoolClient
    Properties: { CallbackURLs: [!Sub "https://${Pages.DomainName}/"] }
"#;

    fn resolved(text: &str) -> Result<crate::template::Template, String> {
        let source = Source::parse(text, Path::new("template.yaml")).map_err(|e| e.to_string())?;
        source.template(&BTreeMap::new(), "http://127.0.0.1").map_err(|error| error.to_string())
    }

    #[test]
    fn a_distribution_has_the_headers_of_its_behaviours() {
        let template = resolved(TEMPLATE).unwrap();
        let distribution = template.distribution.unwrap();
        let header = |name: &str, value: &str, is_override| PolicyHeader {
            name: name.to_owned(),
            value: value.to_owned(),
            is_override,
        };
        let pages = vec![
            header("content-security-policy", "connect-src https://us-east-1.example", false),
            header("x-frame-options", "DENY", true),
            header("x-content-type-options", "nosniff", true),
            header("strict-transport-security", "max-age=60", false),
        ];
        let expected = [
            ("assets/*".to_owned(), vec![header("cache-control", "no-store", false)]),
            ("x".to_owned(), Vec::new()),
            ("*".to_owned(), pages),
        ];
        assert_eq!(distribution.headers, expected);
        assert_eq!(template.clients[0].callbacks, [format!("https://{}/", distribution.domain)]);
    }

    #[test]
    fn a_policy_with_cached_errors_and_a_pattern_that_is_not_emulated_are_errors() {
        for (part, other, expected) in [
            ("no-store", "\"public, max-age=60\"", "AssetHeaders: browsers would keep errors"),
            ("!Ref AssetHeaders", "67f7725c-6f97-4210-82d7-5512b31e9d03", "name it by !Ref"),
            ("!Ref AssetHeaders", "!Ref Missing", "there is no resource Missing"),
            ("PathPattern: assets/*", "PathPattern: \"*.js\"", "at the end of *.js"),
        ] {
            let error = resolved(&TEMPLATE.replace(part, other)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_second_distribution_is_an_error() {
        let more = "Type: AWS::CloudFront::Distribution, Properties: { DistributionConfig: {} }";
        let two = format!("{TEMPLATE}  More: {{ {more} }}\n");
        let error = resolved(&two).unwrap_err();
        assert!(error.contains("More: a second distribution is not emulated"), "{error}");
    }
}
