//! The distribution of a web app: its behaviours, and the headers that they add.
//!
//! Source: the CloudFormation reference, "AWS::CloudFront::ResponseHeadersPolicy".

use serde_json::Value;

use super::{
    Distribution, Located,
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
    fn added_headers(&self, behaviour: &Node) -> Located<Vec<(String, String)>> {
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
        let mut headers = Vec::new();
        for (header, field, value) in SECURITY {
            if let Some(text) = security[field][value].as_str() {
                headers.push((header.to_owned(), text.to_owned()));
            }
        }
        if !security["ContentTypeOptions"].is_null() {
            headers.push(("x-content-type-options".to_owned(), "nosniff".to_owned()));
        }
        if let Some(seconds) =
            security["StrictTransportSecurity"]["AccessControlMaxAgeSec"].as_u64()
        {
            headers.push(("strict-transport-security".to_owned(), format!("max-age={seconds}")));
        }
        for item in custom["Items"].as_array().into_iter().flatten() {
            if let (Some(header), Some(text)) = (item["Header"].as_str(), item["Value"].as_str()) {
                headers.push((header.to_lowercase(), text.to_owned()));
            }
        }
        let is_kept = |(header, text): &(String, String)| {
            header == "cache-control" && !["no-cache", "no-store"].contains(&text.as_str())
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

    use crate::template::Source;

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
          FrameOptions: { FrameOption: DENY }
          StrictTransportSecurity: { AccessControlMaxAgeSec: 60 }
  AssetHeaders:
    Type: AWS::CloudFront::ResponseHeadersPolicy
    Properties:
      ResponseHeadersPolicyConfig:
        CustomHeadersConfig: { Items: [{ Header: Cache-Control, Value: no-cache }] }
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
        let of = |header: &str, value: &str| (header.to_owned(), value.to_owned());
        let pages = vec![
            of("content-security-policy", "connect-src https://us-east-1.example"),
            of("x-frame-options", "DENY"),
            of("x-content-type-options", "nosniff"),
            of("strict-transport-security", "max-age=60"),
        ];
        let expected = [
            ("assets/*".to_owned(), vec![of("cache-control", "no-cache")]),
            ("x".to_owned(), Vec::new()),
            ("*".to_owned(), pages),
        ];
        assert_eq!(distribution.headers, expected);
        assert_eq!(template.clients[0].callbacks, [format!("https://{}/", distribution.domain)]);
    }

    #[test]
    fn a_policy_with_cached_errors_and_a_pattern_that_is_not_emulated_are_errors() {
        for (part, other, expected) in [
            ("no-cache", "\"public, max-age=60\"", "AssetHeaders: browsers would keep errors"),
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
