//! Plants faults in the template that the generator makes for the tanks.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::LazyLock,
};

use ledgerline::manifest::{
    Manifest, Manifests, OtherView, Source as Events,
    SubscriberKind::{LogProjector, StateProjector},
    ViewStore,
};
use serde_json::json;

use super::problems;
use crate::{
    generate::{self, Application, Deploy},
    manifests::read_file,
    policy,
    template::Source,
    tests::TANKS,
};

static RUNBOOK: LazyLock<String> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/runbook.md");
    fs::read_to_string(path).unwrap()
});

/// A path at which there is no file of a team.
const NOWHERE: &str = "tanks/template.yaml";

/// Generates the template of the tanks with these resources of a team.
fn generate_tanks(own: &str) -> Source {
    let text = format!(
        "Resources:\n  StuckHauls: {{ Properties: {{ AlarmDescription: !Sub \"See ${{RunbookUrl}}\
         #function-errors\" }} }}\n  {own}\n"
    );
    generate_with(&text, Path::new(NOWHERE))
}

/// Generates the template of the tanks, with Levels on the bus, and this text of a team.
fn generate_with(deploy: &str, path: &Path) -> Source {
    let deploy = Deploy::parse(Path::new("deploy.yaml"), deploy).unwrap();
    let application =
        Application { name: "tanks".to_owned(), parts: BTreeSet::new(), folders: BTreeMap::new() };
    let mut manifests = read_file(TANKS.path()).unwrap();
    let levels = &mut manifests.get_mut("levels-projector").unwrap().source;
    if let Events::States { bus, .. } = levels {
        *bus = true;
    }
    manifests.extend(manifests_in_other_stores());
    let text = generate::template(&application, &manifests, &deploy).unwrap();
    Source::parse(&text, path).unwrap()
}

/// A log view in PostgreSQL, which also gets records of Kinesis, and a state view in OpenSearch. A
/// stack may lack each store, so the values that name resources of these views have a condition.
fn manifests_in_other_stores() -> Manifests {
    let queue = Events::Queue(["tank".into()].into());
    let texts = OtherView::new(ViewStore::Postgres, "TEXTS_TABLE");
    let texts = Manifest::new(queue).other_view(LogProjector, texts).kinesis();
    let texts = texts.call("rds-db:connect", "DATABASE_URL").optional("DATABASE_CA");
    let states = Events::States { category: "tank".into(), bus: false, events: BTreeSet::new() };
    let cards = OtherView::new(ViewStore::OpenSearch, "CARDS_TABLE");
    let cards = Manifest::new(states).other_view(StateProjector, cards);
    let cards = cards.call("es:ESHttpPost", "SEARCH_ENDPOINT");
    Manifests::from([("texts-projector".into(), texts), ("cards-projector".into(), cards)])
}

/// The lines of a resource in a text, from 1.
fn lines_of(text: &str, id: &str) -> std::ops::Range<usize> {
    let is_id = |line: &str| line.starts_with("  ") && !line.starts_with("   ");
    let lines: Vec<_> = text.lines().collect();
    let begin = 1 + lines.iter().position(|line| line.starts_with(&format!("  {id}:"))).unwrap();
    let length = lines[begin..].iter().position(|line| is_id(line)).unwrap();
    begin..begin + length + 1
}

/// Returns the template with one text of a resource in place of another.
fn edit(id: &str, text: &str, instead: &str) -> Source {
    static WHOLE: LazyLock<String> = LazyLock::new(|| generate_tanks("").text().to_owned());
    let lines: Vec<_> = WHOLE.split_inclusive('\n').collect();
    let range = lines_of(&WHOLE, id);
    let (begin, end) = (range.start - 1, range.end - 1);
    let resource = lines[begin..end].concat();
    assert!(resource.contains(text), "{id} has no {text}: {resource}");
    let resource = resource.replacen(text, instead, 1);
    let text = lines[..begin].concat() + &resource + &lines[end..].concat();
    Source::parse(&text, Path::new(NOWHERE)).unwrap()
}

#[test]
fn a_planted_fault_is_refused_with_its_resource_its_line_and_a_remedy() {
    let mut unnoticed = Vec::new();
    let faults = include_str!("faults.txt").lines().filter(|line| !line.starts_with('#'));
    let faults: Vec<_> = faults.filter(|line| !line.is_empty()).collect();
    for fault in faults.chunks(2) {
        let expected = fault[1].trim();
        let planted = fault[0].replace("\\n", "\n");
        let parts: Vec<_> = planted.trim_end_matches(" |").split(" | ").collect();
        let source = match parts.as_slice() {
            ["+", own] => generate_tanks(own),
            [id, text] => edit(id, text, ""),
            [id, text, instead] => edit(id, text, instead),
            _ => panic!("{planted}"),
        };
        let found = problems(&source, &RUNBOOK);
        let (id, _) = expected.split_once([':', '.']).unwrap();
        let lines = lines_of(source.text(), id);
        let is_it = |problem: &&String| {
            let (_, place) = problem.split_once("template.yaml:").unwrap();
            let (line, message) = place.split_once(": ").unwrap();
            message.starts_with(expected) && lines.contains(&line.parse().unwrap())
        };
        if !found.iter().any(|problem| is_it(&problem)) {
            unnoticed.push(format!("{}\n{expected}\nin {lines:?}, but: {found:#?}", fault[0]));
        }
    }
    assert!(unnoticed.is_empty(), "{} of them: {}", unnoticed.len(), unnoticed.join("\n\n"));
}

/// SAM writes each `Fn::GetAtt` as a list, and the linter checks the output of SAM.
#[test]
fn a_list_is_accepted_for_an_attribute() {
    let whole = generate_tanks("");
    let mut parts = whole.text().split("!GetAtt ");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let end = part.find([',', ' ', ']', '}', '\n']).unwrap();
        let (id, attribute) = part[..end].split_once('.').unwrap();
        text += &format!("{{ Fn::GetAtt: [{id}, {attribute}] }}{}", &part[end..]);
    }
    let source = Source::parse(&text, Path::new(NOWHERE)).unwrap();
    assert_eq!(problems(&source, &RUNBOOK), [""; 0]);
}

#[test]
fn templates_without_faults_have_no_problems() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let starter = root.join("crates/lib/ledgerline-tools/starter");
    let text = |name: &str| fs::read_to_string(starter.join(name)).unwrap();
    let manifests = crate::manifests::read(&text("manifest.json")).unwrap();
    let depot = Application {
        name: "north-depot".to_owned(),
        parts: BTreeSet::new(),
        folders: BTreeMap::new(),
    };
    let none = Deploy::parse(Path::new("deploy.yaml"), "").unwrap();
    let made = generate::template(&depot, &manifests, &none).unwrap();
    let starters = text("docs/runbook.md");
    for (source, runbook) in [
        (generate_tanks(""), &*RUNBOOK),
        (TANKS.clone(), &*RUNBOOK),
        (Source::read(&root.join("template.yaml")).unwrap(), &*RUNBOOK),
        (Source::parse(&made, TANKS.path()).unwrap(), &starters),
    ] {
        assert_eq!(problems(&source, runbook), [""; 0]);
    }
}

#[test]
fn resources_of_a_team_that_break_no_rule_have_no_problems() {
    for own in include_str!("allowed.txt").lines() {
        let source = generate_tanks(&own.replace("\\n", "\n"));
        assert_eq!(problems(&source, &RUNBOOK), [""; 0], "{own}");
    }
}

/// A policy that a team attaches to a generated role.
const SENDER: &str = "HaulSender: { Type: AWS::IAM::RolePolicy, Properties: { RoleName: !Ref HaulRole, \
    PolicyName: x, PolicyDocument: { Version: \"2012-10-17\", Statement: [{ Effect: Allow, Action: \
    ses:SendEmail, Resource: \"arn:aws:ses:us-east-1:000000000000:identity/*\" }] } } }";

#[test]
fn the_local_stack_reads_a_policy_that_a_team_attaches_to_a_role() {
    let template = generate_tanks(SENDER).template(&BTreeMap::new(), "http://127.0.0.1").unwrap();
    let haul = template.functions.iter().find(|function| function.id == "HaulFunction").unwrap();
    let policies = &haul.role.as_ref().unwrap().policies;
    let address = "arn:aws:ses:us-east-1:000000000000:identity/a";
    assert!(policy::allows(policies, "ses:SendEmail", address, &[]).unwrap());
    assert_eq!(template.ignored.iter().find(|(id, _)| id == "HaulSender"), None);
}

#[test]
fn a_fault_in_the_file_of_a_team_has_its_line_there() {
    // Given a right of a team to change commits, and an override with too few attempts,
    let folder = tempfile::tempdir().unwrap();
    let statement =
        "{ Effect: Allow, Action: dynamodb:UpdateItem, Resource: !GetAtt CommitsTable.Arn }";
    let text = format!(
        "Resources:\n  Own:\n    Type: AWS::IAM::RolePolicy\n    Properties: {{ RoleName: !Ref HaulRole, \
         PolicyName: x, PolicyDocument: {{ Statement: [{statement}] }} }}\n  HaulQueue: {{ Properties: \
         {{ RedrivePolicy: {{ maxReceiveCount: 1 }} }} }}\n  \
         StuckHauls: {{ Properties: {{ AlarmDescription: !Sub \"${{RunbookUrl}}#function-errors\" }} }}\n"
    );
    fs::write(folder.path().join("deploy.yaml"), &text).unwrap();
    // when the template with both is checked,
    let source = generate_with(&text, &folder.path().join("template.yaml"));
    let found = problems(&source, &RUNBOOK);
    // then the problems have lines of that file.
    let expected = [
        "deploy.yaml:4: Own: rule 3: it allows dynamodb:UpdateItem on CommitsTable: delete the right",
        "deploy.yaml:5: HaulQueue: write a maxReceiveCount from 2 to 1000",
    ];
    let is_expected = found.iter().zip(expected).all(|(found, expected)| found.ends_with(expected));
    assert!(found.len() == 2 && is_expected, "{found:#?}");
}

#[test]
fn an_entry_of_the_runbook_without_commands_at_its_beginning_is_reported() {
    let heading = "## Iterator age\n\n";
    assert!(RUNBOOK.contains(heading));
    let runbook = RUNBOOK.replace(heading, "## Iterator age\n\nAt first:\n\n");
    let found = problems(&TANKS, &runbook);
    let expected = "FanoutIteratorAge: rule 11: it links to iterator-age: write";
    assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
}

#[test]
fn a_caller_with_the_policy_of_a_url_cannot_invoke_the_function_directly() {
    // Given the policies of the tanks,
    let statements = TANKS.statements().unwrap();
    let of_it = statements.into_iter().filter(|(id, _)| id == "TankCommandsCallerPolicy");
    let statements: Vec<_> = of_it.map(|(_, statement)| statement).collect();
    let policy = &[json!({ "Version": "2012-10-17", "Statement": statements })][..];
    let function = "arn:aws:lambda:us-east-1:000000000000:function:tanks-TankCommandsFunction";
    for (action, of, via_url, may) in [
        ("lambda:InvokeFunctionUrl", ":live", None, true),
        ("lambda:InvokeFunction", ":live", Some(true), true),
        // when a caller invokes the function directly, or another function through its URL,
        ("lambda:InvokeFunction", ":live", None, false),
        ("lambda:InvokeFunction", ":live", Some(false), false),
        ("lambda:InvokeFunction", "", None, false),
        ("lambda:InvokeFunction", "-2:live", Some(true), false),
    ] {
        // then IAM denies it.
        let context: Vec<_> =
            via_url.map(|it| ("lambda:InvokedViaFunctionUrl", it)).into_iter().collect();
        let allowed = policy::allows(policy, action, &format!("{function}{of}"), &context).unwrap();
        assert_eq!(allowed, may, "{action} {of} {via_url:?}");
    }
}

#[test]
fn the_template_allows_only_origins_that_a_page_can_have() {
    for (origins, is_allowed) in [
        ("", true),
        ("*", true),
        ("https://*", true),
        ("http://localhost:5173,https://a.example.com", true),
        ("http://[::1]:3000", true),
        ("https://a.example.com/", false),
        ("https://a.example.com,https://*.b.example.com", false),
        ("https://a.example.com, https://b.example.com", false),
        ("https://a.example.com,", false),
        (",https://a.example.com", false),
        ("https://A.example.com", false),
        ("https://a.example.com?page=1", false),
        ("a.example.com", false),
    ] {
        let overrides = BTreeMap::from([("AllowedOrigins".to_owned(), origins.to_owned())]);
        let error = TANKS.template(&overrides, "http://sqs").err().map(|error| error.to_string());
        assert_eq!(error.is_none(), is_allowed, "{origins}: {error:?}");
        let message = error.unwrap_or_default();
        assert!(is_allowed || message.contains("expected origins without paths"), "{message}");
    }
}
