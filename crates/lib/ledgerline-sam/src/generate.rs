//! Makes a template from the manifests of functions and `deploy.yaml`.

mod application_name;
mod assembly;
mod conditions;
mod deploy;
mod function;
mod headings;
mod ids;
mod lists;
mod operator_policies;
mod part;
mod prune;
mod replacement;
mod role_policy;
mod routes;
mod statements;
mod stores;
mod table;
mod value;
mod write;

pub use self::{
    application_name::Application,
    assembly::template,
    deploy::{Deploy, FILE as DEPLOY, OptionalPart},
    ids::lost_ids,
    replacement::replacement_differences,
};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ledgerline::manifest::{Call, Manifest, Manifests};
    use serde_json::Value;

    use super::*;
    use crate::{
        manifests::in_template,
        rules,
        template::Source,
        tests::{TANK, TANKS},
    };

    fn tanks() -> Manifests {
        in_template(&TANKS.json()).unwrap().unwrap()
    }

    fn generate(manifests: &Manifests, deploy: &str) -> anyhow::Result<Source> {
        let deploy = Deploy::parse(Path::new("deploy.yaml"), deploy)?;
        let application = Application::read(Path::new(TANK), &deploy)?;
        let text = template(&application, manifests, &deploy)?;
        Ok(Source::parse(&text, Path::new("template.yaml"))?)
    }

    #[test]
    fn the_template_of_the_tanks_follows_from_its_manifests() {
        let deploy = std::fs::read_to_string(Path::new(TANK).join(DEPLOY)).unwrap();
        let twice = [(); 2].map(|()| generate(&tanks(), &deploy).unwrap());
        twice.iter().for_each(|made| assert_eq!(made.text(), TANKS.text()));
    }

    /// A workspace begins with few functions, and gets others one by one.
    #[test]
    fn the_template_of_some_functions_refers_to_nothing_that_is_missing() {
        let required = ["tank-fanout", "tank-sequencer"];
        for dropped in tanks().keys().filter(|name| !required.contains(&name.as_str())) {
            let mut manifests = tanks();
            manifests.remove(dropped);
            assert_complete(&generate(&manifests, "").unwrap(), dropped);
        }
        let mut manifests = tanks();
        manifests.remove("tank-sequencer");
        let error = generate(&manifests, "").unwrap_err().to_string();
        assert!(error.contains("no function is the sequencer"), "{error}");
        let few = ["tank-fanout", "tank-commands", "levels-projector", "fills-projector"];
        let manifests = tanks().into_iter().filter(|(name, _)| few.contains(&name.as_str()));
        let source = generate(&manifests.collect(), "").unwrap();
        assert_complete(&source, "most");
        let json = source.json();
        for id in ["OperationsTable", "EventsReaderClient", "SequenceTable"] {
            assert!(json["Resources"][id].is_null(), "{id}");
        }
        assert!(json["Parameters"]["ReadYourWriteTimeout"].is_null());
        let scopes = json["Resources"]["ApiScopes"]["Properties"]["Scopes"].as_array().unwrap();
        let scopes: Vec<_> = scopes.iter().map(|scope| &scope["ScopeName"]).collect();
        assert_eq!(scopes, ["read", "write", "operate"]);
    }

    /// Checks that each reference of a template names a parameter, a resource or a condition.
    fn assert_complete(source: &Source, dropped: &str) {
        let json = source.json();
        let mut names = Vec::new();
        for section in ["Globals", "Resources", "Outputs", "Conditions", "Rules"] {
            add_names(&json[section], &mut names);
        }
        let sections = ["Parameters", "Resources", "Conditions"];
        let is_known = |name: &str| {
            let id = name.split('.').next().unwrap_or_default();
            name.starts_with("AWS::") || sections.iter().any(|it| !json[it][id].is_null())
        };
        let missing: Vec<_> = names.iter().filter(|name| !is_known(name)).collect();
        assert!(missing.is_empty(), "without {dropped}: {missing:?}");
        source.template(&std::collections::BTreeMap::new(), "http://127.0.0.1").unwrap();
    }

    fn add_names(value: &Value, names: &mut Vec<String>) {
        for (key, value) in value.as_object().into_iter().flatten() {
            match (key.as_str(), value.as_str()) {
                ("Ref" | "Fn::GetAtt" | "Condition" | "DependsOn", Some(name)) => {
                    names.push(name.to_owned());
                }
                ("Fn::Sub", Some(text)) => {
                    let tokens = text.split("${").skip(1);
                    names.extend(tokens.filter_map(|it| Some(it.split('}').next()?.to_owned())));
                }
                ("Fn::If", _) => names.extend(value[0].as_str().map(ToOwned::to_owned)),
                _ => {}
            }
            add_names(value, names);
        }
        value.as_array().into_iter().flatten().for_each(|value| add_names(value, names));
    }

    #[test]
    fn a_variable_without_a_value_is_an_error_with_the_line_for_deploy_yaml() {
        let mut manifests = tanks();
        let haul = manifests.remove("haul").unwrap();
        manifests.insert("haul".to_owned(), haul.variable("MAIL_SENDER"));
        let error = generate(&manifests, "").unwrap_err().to_string();
        assert!(error.starts_with("HaulFunction reads MAIL_SENDER, which has no value"), "{error}");
        let deploy = "Resources: { HaulFunction: { Properties: { Environment: { Variables: { MAIL_SENDER: x } } } } }";
        generate(&manifests, deploy).unwrap();
    }

    #[test]
    fn a_function_that_may_not_read_the_body_objects_of_its_category_is_an_error_that_names_it() {
        let mut manifests = tanks();
        manifests.get_mut("fills-projector").unwrap().bodies = None;
        let error = generate(&manifests, "").unwrap_err().to_string();
        let expected = "`fills-projector` reads commits of a category with body objects, and its package does not";
        assert!(error.starts_with(expected) && error.contains("`bodies` with tank"), "{error}");
    }

    #[test]
    fn two_functions_with_one_id_are_an_error_with_both_names() {
        let mut manifests = tanks();
        manifests.insert("tank_queries".to_owned(), manifests["tank-queries"].clone());
        let error = generate(&manifests, "").unwrap_err().to_string();
        let expected =
            "`tank-queries` and `tank_queries` both make TankQueriesFunction: rename one";
        assert_eq!(error, expected);
    }

    #[test]
    fn two_views_with_one_table_are_an_error_that_names_the_code_to_change() {
        let mut manifests = tanks();
        manifests.insert("sums-projector".to_owned(), manifests["fills-projector"].clone());
        let error = generate(&manifests, "").unwrap_err().to_string();
        let expected = "`fills-projector` and `sums-projector` write one table: give the table of one of them another variable than `FILLS_TABLE` in the code";
        assert_eq!(error, expected);
    }

    #[test]
    fn a_function_of_the_teams_own_is_as_deploy_yaml_has_it() {
        let mut manifests = tanks();
        let nightly = Manifest::new(ledgerline::manifest::Source::Schedule);
        manifests.insert("nightly".to_owned(), nightly);
        let error = generate(&manifests, "").unwrap_err().to_string();
        assert!(error.contains("`nightly` has only a schedule"), "{error}");
        let deploy = "Resources:\n  Nightly:\n    Type: AWS::Serverless::Function\n    \
            Metadata: { BuildProperties: { Binary: nightly } }\n    Properties: { Timeout: 60 }\n";
        let made = generate(&manifests, deploy).unwrap().json();
        assert_eq!(made["Resources"]["Nightly"]["Properties"]["Timeout"], 60);
    }

    #[test]
    fn the_local_stack_names_what_it_cannot_run_of_the_team_and_refuses_it_of_others() {
        // Given functions that the local stack cannot run, of the team and generated,
        let nightly =
            "Events: { Nightly: { Type: Schedule, Properties: { Schedule: cron(0 1 * * ? *) } } }";
        let own = format!(
            "Resources:\n  Mine:\n    Type: AWS::Serverless::Function\n    Metadata: {{ BuildProperties: \
             {{ Binary: mine }} }}\n    Properties: {{ {nightly} }}\n  Theirs: {{ Type: AWS::Lambda::Function }}\n"
        );
        let generated =
            format!("Resources: {{ FanoutFunction: {{ Properties: {{ {nightly} }} }} }}");
        let [own, generated] = [own, generated].map(|deploy| {
            let source = generate(&tanks(), &deploy).unwrap();
            // when the local stack reads the template,
            source.template(&std::collections::BTreeMap::new(), "http://127.0.0.1")
        });
        // then it runs the functions of the team as far as it can, and no generated one.
        let own = own.unwrap();
        assert!(own.functions.iter().any(|function| function.id == "Mine"));
        let expected = [
            "Mine.Events.Nightly: the schedule cron(0 1 * * ? *) is not emulated",
            "Theirs: AWS::Lambda::Function is not emulated",
        ];
        assert!(own.ignored_properties.ends_with(&expected.map(ToOwned::to_owned)));
        assert!(generated.unwrap_err().to_string().contains("FanoutFunction.Events.Nightly"));
    }

    #[test]
    fn an_attribute_of_the_teams_own_resource_is_its_path_on_a_laptop_and_unknown_to_the_rules() {
        // Given a variable with an attribute of a database, and a right to change rows of it,
        let deploy = |id: &str| {
            format!(
                "Resources:\n  Rows: {{ Type: AWS::RDS::DBCluster }}\n  HaulFunction: {{ Properties: {{ \
                 Environment: {{ Variables: {{ ROWS: !Sub \"${{{id}.Endpoint}}/x\" }} }} }} }}\n  Own: {{ Type: \
                 AWS::IAM::RolePolicy, Properties: {{ RoleName: !Ref HaulRole, PolicyName: x, PolicyDocument: {{ \
                 Statement: [{{ Effect: Allow, Action: dynamodb:UpdateItem, Resource: !GetAtt Rows.Id }}] }} }} }}\n"
            )
        };
        let [own, generated] = ["Rows", "UserPool"].map(|id| {
            let source = generate(&tanks(), &deploy(id)).unwrap();
            (source.template(&std::collections::BTreeMap::new(), "http://127.0.0.1"), source)
        });
        // when the local stack and the rules read the template,
        let functions = own.0.unwrap().functions;
        let found = rules::problems(&own.1, "").join("\n");
        // then the variable has the path, and the right may be one to change commits.
        let haul = functions.iter().find(|function| function.id == "HaulFunction").unwrap();
        assert_eq!(haul.environment["ROWS"], "Rows.Endpoint/x");
        assert!(found.contains("rule 3: it allows dynamodb:UpdateItem on CommitsTable"), "{found}");
        let error = generated.0.unwrap_err().to_string();
        assert!(error.contains("the attribute Endpoint of UserPool is not emulated"), "{error}");
    }

    #[test]
    fn a_resource_that_a_team_keeps_as_a_whole_is_compared_with_the_generated_one() {
        let deploy = "Resources:\n  LevelsTable:\n    Type: AWS::DynamoDB::Table\n    \
            Metadata: { Ledgerline: { Generated: false } }\n    \
            Properties: { BillingMode: PROVISIONED }\n";
        let deploy = Deploy::parse(Path::new("deploy.yaml"), deploy).unwrap();
        let application = Application::read(Path::new(TANK), &deploy).unwrap();
        let lines = replacement_differences(&application, &tanks(), &deploy).unwrap();
        let billing =
            r#"LevelsTable.Properties.BillingMode: "PROVISIONED"; generated: "PAY_PER_REQUEST""#;
        assert!(lines.iter().any(|line| line == billing), "{lines:#?}");
        let keys =
            "LevelsTable.Properties.KeySchema.0.AttributeName: nothing; generated: \"tankId\"";
        assert!(lines.iter().any(|line| line == keys), "{lines:#?}");
        assert!(lines.iter().all(|line| line.starts_with("LevelsTable.")), "{lines:#?}");
    }

    /// The documents of the policies whose ids begin so.
    fn operator_policies(source: &Source, begin: &str) -> Vec<String> {
        let json = source.json();
        let resources = json["Resources"].as_object().unwrap().iter();
        let policies = resources.filter(|(id, _)| id.starts_with(begin));
        policies.map(|(_, policy)| policy["Properties"]["PolicyDocument"].to_string()).collect()
    }

    #[test]
    fn a_policy_of_operators_that_is_too_long_continues_in_others() {
        // Given a team with queues for more than one policy,
        let queue = |number| format!("  Q{number}: {{ Type: AWS::SQS::Queue }}\n");
        let queues: String = (100..160).map(queue).collect();
        // when the template is made,
        let source = generate(&tanks(), &format!("Resources:\n{queues}")).unwrap();
        // then each queue is in one policy for readers and one for writers, and IAM allows each.
        for begin in ["OperatorReadPolicy", "OperatorPolicy"] {
            let policies = operator_policies(&source, begin);
            assert!(policies.len() > 2, "{policies:?}");
            for number in 100..160 {
                let arn = format!("\"Q{number}.Arn\"");
                assert_eq!(policies.concat().matches(&arn).count(), 1, "{arn}");
            }
        }
        let found = rules::problems(&source, "").join("\n");
        assert!(!found.contains("IAM allows"), "{found}");
    }

    #[test]
    fn operators_write_only_rows_of_views_and_invoke_only_what_maintains_them() {
        // Given tables and a function of a team,
        let deploy = "Conditions: { HasOwn: !Equals [a, b] }\nResources:\n  \
            Own: { Type: AWS::DynamoDB::Table, Condition: HasOwn }\n  Mine: { Type: \
            AWS::Lambda::Function, Properties: { Role: !GetAtt HaulRole.Arn } }\n";
        // when the template is made,
        let source = generate(&tanks(), deploy).unwrap();
        // then operators may read the table if it exists,
        let own = r#"{"Fn::If":["HasOwn",{"Fn::GetAtt":"Own.Arn"},{"Ref":"AWS::NoValue"}]}"#;
        assert!(operator_policies(&source, "OperatorReadPolicy").concat().contains(own));
        // and neither write into it or into positions, nor invoke what acts.
        let writes = operator_policies(&source, "OperatorPolicy").concat();
        assert!(writes.contains("LevelsTable.Arn") && writes.contains("${Mine.Arn}*"), "{writes}");
        assert!(writes.contains("${LevelsProjectorFunction.Arn}:live"), "{writes}");
        for refused in ["Own.Arn", "HaulPositionsTable", "HaulFunction.Arn}:", "Mine.Arn}:"] {
            assert!(!writes.contains(refused), "{refused} in {writes}");
        }
    }

    /// `wire` writes each declared right, and `check` refuses the forbidden ones.
    #[test]
    fn a_declared_right_to_remove_the_protection_of_the_log_is_refused() {
        for action in
            ["DeleteTable", "DeleteResourcePolicy", "PutResourcePolicy", "UpdateTable", "PutItem"]
        {
            let action = format!("dynamodb:{action}");
            let mut manifests = tanks();
            let fanout = manifests.get_mut("tank-fanout").unwrap();
            let call = Call { action: action.clone().into(), variable: "COMMITS_TABLE".into() };
            fanout.calls.push(call);
            let found = rules::problems(&generate(&manifests, "").unwrap(), "").join("\n");
            let expected = format!("FanoutRole: rule 3: it allows {action} on CommitsTable");
            assert!(found.contains(&expected), "{found}");
        }
    }
}
