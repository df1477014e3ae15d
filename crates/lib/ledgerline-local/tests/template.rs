//! The error messages for templates that cannot be run.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeMap;

use ledgerline_sam::template::load;

fn refusal(template: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("template.yaml");
    std::fs::write(&path, template).unwrap();
    let message = load(&path, &BTreeMap::new(), "http://sqs").unwrap_err().to_string();
    message.split_once("template.yaml:").unwrap().1.to_owned()
}

const FUNCTION: &str = "Resources:
  Hello:
    Type: AWS::Serverless::Function
    Metadata: { BuildProperties: { Binary: hello } }
    Properties:
      Timeout: 3
";

#[test]
fn an_error_in_a_template_names_its_line() {
    for (template, expected) in [
        ("Resources: [\n", "2: "),
        ("{}\n", "1: there are no Resources"),
        (
            &format!(
                "Parameters:\n  Site: {{ Type: String, Default: a/, AllowedPattern: '[a-z]*' }}\n{FUNCTION}"
            ),
            "2: parameter `Site` does not allow `a/`: expected a text that matches `[a-z]*`",
        ),
        (
            &format!(
                "Parameters:\n  Site: {{ Type: String, Default: c, AllowedValues: [a, b] }}\n{FUNCTION}"
            ),
            "2: parameter `Site` does not allow `c`: choose one of: a, b",
        ),
        (
            "Resources:\n  Bus: { Type: AWS::Events::EventBus, Properties: {} }\n",
            "1: there are no functions",
        ),
        (&FUNCTION.replace("Binary", "Binari"), "3: Hello needs Metadata.BuildProperties.Binary"),
        (
            &FUNCTION.replace("Timeout: 3", "Timeout: soon"),
            "6: Hello.Timeout: invalid type: string",
        ),
        (
            &FUNCTION.replace("Timeout: 3", "Timeout: !Ref Nothing"),
            "6: there is no resource or parameter Nothing",
        ),
        (
            &FUNCTION.replace("Timeout: 3", "Timeout: !Select [0, [3]]"),
            "6: Fn::Select is not emulated",
        ),
        (
            &format!(
                "{FUNCTION}      Events:\n        Tick:\n          Type: Cognito\n          Properties: {{}}\n"
            ),
            "9: Hello.Events.Tick: events of type Cognito are not emulated",
        ),
        (
            &format!(
                "{FUNCTION}      Events:\n        Tick:\n          Type: Schedule\n          Properties: {{ Schedule: cron(0 10 * * ? *) }}\n"
            ),
            "9: Hello.Events.Tick: the schedule cron(0 10 * * ? *) is not emulated",
        ),
        (
            &format!(
                "{FUNCTION}      Events:\n        Q:\n          Type: SQS\n          Properties:\n            Queue: arn\n            BatchSice: 5\n"
            ),
            "12: Hello.Events.Q.BatchSice: unknown field `BatchSice`",
        ),
    ] {
        let message = refusal(template);
        assert!(message.starts_with(expected), "{template}\n{message}");
    }
}
