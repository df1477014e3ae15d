//! The properties of the resources that the local stack runs: those that it reads, and those that
//! have no meaning on a laptop. At its start, the local stack names every other property, so that
//! no feature of AWS is silently missing.

use crate::yaml::Node;

/// The properties of a type of resource.
struct Known {
    kind: &'static str,
    /// Properties that the local stack emulates.
    read: &'static [&'static str],
    /// Properties of deployment, cost, durability or monitoring.
    meaningless: &'static [&'static str],
}

const KNOWN: [Known; 7] = [
    Known {
        kind: "AWS::Serverless::Function",
        read: &[
            "Environment",
            "EventInvokeConfig",
            "Events",
            "FunctionName",
            "LoggingConfig",
            "Role",
            "Timeout",
        ],
        meaningless: &[
            "Architectures",
            "AutoPublishAlias",
            "AutoPublishAliasAllProperties",
            "CodeUri",
            "DeploymentPreference",
            "Description",
            "Handler",
            "MemorySize",
            "PropagateTags",
            "Runtime",
            "Tags",
            "Tracing",
        ],
    },
    Known {
        kind: "AWS::Serverless::HttpApi",
        read: &["AccessLogSettings", "Auth", "CorsConfiguration"],
        meaningless: &["Description", "FailOnWarnings", "Name", "PropagateTags", "Tags"],
    },
    Known {
        kind: "AWS::DynamoDB::Table",
        read: &[
            "AttributeDefinitions",
            "GlobalSecondaryIndexes",
            "KeySchema",
            "KinesisStreamSpecification",
            "LocalSecondaryIndexes",
            "ResourcePolicy",
            "StreamSpecification",
            "TableName",
            "TimeToLiveSpecification",
        ],
        meaningless: &[
            "BillingMode",
            "ContributorInsightsSpecification",
            "DeletionProtectionEnabled",
            "PointInTimeRecoverySpecification",
            "SSESpecification",
            "TableClass",
            "Tags",
        ],
    },
    Known {
        kind: "AWS::SQS::Queue",
        read: &[
            "ContentBasedDeduplication",
            "DeduplicationScope",
            "DelaySeconds",
            "FifoQueue",
            "FifoThroughputLimit",
            "MaximumMessageSize",
            "MessageRetentionPeriod",
            "QueueName",
            "ReceiveMessageWaitTimeSeconds",
            "RedrivePolicy",
            "VisibilityTimeout",
        ],
        meaningless: &[
            "KmsDataKeyReusePeriodSeconds",
            "KmsMasterKeyId",
            "SqsManagedSseEnabled",
            "Tags",
        ],
    },
    Known {
        kind: "AWS::S3::Bucket",
        read: &["BucketName"],
        meaningless: &[
            "BucketEncryption",
            "LifecycleConfiguration",
            "NotificationConfiguration",
            "OwnershipControls",
            "PublicAccessBlockConfiguration",
            "Tags",
        ],
    },
    Known { kind: "AWS::Events::EventBus", read: &["Name"], meaningless: &["Description", "Tags"] },
    Known {
        kind: "AWS::IAM::Role",
        read: &["ManagedPolicyArns", "Policies"],
        meaningless: &["AssumeRolePolicyDocument", "Description", "Path", "RoleName", "Tags"],
    },
];

/// The names of the properties of a resource that are not emulated: `HttpApi.Domain`.
pub(crate) fn not_emulated(id: &str, kind: &str, properties: Option<&Node>) -> Vec<String> {
    let Some(known) = KNOWN.iter().find(|known| known.kind == kind) else { return Vec::new() };
    let names = properties.map_or(&[][..], Node::entries).iter().map(|(name, _)| name.as_str());
    let others =
        names.filter(|name| !known.read.contains(name) && !known.meaningless.contains(name));
    others.map(|name| format!("{id}.{name}")).collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use crate::template::Source;

    #[test]
    fn properties_that_are_not_emulated_are_named() {
        let template = "Globals:\n  Function: { Timeout: 3, SnapStart: { ApplyOn: x } }\n  HttpApi: { Domain: {} }\n\
            Resources:\n  HttpApi:\n    Type: AWS::Serverless::HttpApi\n    Properties: { Domain: {}, FailOnWarnings: true }\n  \
            Rows:\n    Type: AWS::DynamoDB::Table\n    Properties: { ImportSourceSpecification: {}, BillingMode: PAY_PER_REQUEST }\n  \
            Jobs:\n    Type: AWS::SQS::Queue\n    Properties: { FifoQueue: true, RedriveAllowPolicy: {} }\n";
        let source = Source::parse(template, Path::new("t")).unwrap();
        let template = source.template(&BTreeMap::new(), "http://127.0.0.1").unwrap();
        let expected = [
            "Globals.Function.SnapStart",
            "Globals.HttpApi.Domain",
            "HttpApi.Domain",
            "Rows.ImportSourceSpecification",
            "Jobs.RedriveAllowPolicy",
        ];
        assert_eq!(template.ignored_properties, expected);
    }
}
