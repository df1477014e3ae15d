//! The sample events are requests that the routes accept.

use aws_lambda_events::apigw::ApiGatewayV2httpRequest;
use bank::account::{Booking, Command};
use bank_functions::commands::account::routes;
use ledgerline::spec::valid;
use ledgerline_lambda::http::{HttpRequest, Problem};

const ID: &str = "163082d2-b005-45d7-9eb6-aa1f83efd55d";

fn sample(name: &str) -> HttpRequest {
    let path =
        format!("{}/../../../../events/account-commands/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let request: ApiGatewayV2httpRequest =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    request.into()
}

fn command(name: &str) -> Result<Command, Problem> {
    let (request, routes) = (sample(name), routes());
    let route = routes.iter().find(|route| route.key() == request.route()).unwrap();
    let (stream, command) = route.read(&request)?;
    assert_eq!(stream.as_str(), format!("account-{ID}"));
    Ok(command.unwrap())
}

#[test]
fn each_sample_is_read_as_the_command_of_its_name() {
    assert_eq!(command("open"), Ok(Command::Open(valid("Ada"), valid("EUR"))));
    let salary = Booking { amount: valid(5_000), reference: Some(valid("salary")) };
    assert_eq!(command("credit"), Ok(Command::Credit(salary)));
    let debit = Booking { amount: valid(4_000), reference: None };
    assert_eq!(command("debit"), Ok(Command::Debit(debit)));
    assert_eq!(command("close"), Ok(Command::Close));
    assert_eq!(command("invalid-amount").unwrap_err().field.as_deref(), Some("amount"));
}

#[test]
fn the_caller_and_the_origin_are_read_from_the_event() {
    let request = sample("open");
    let meta = request.meta();
    assert_eq!(meta.actor.as_deref(), Some("2b6f0cc9-4e1f-4b0f-9d0e-1d8f5f6c7a10"));
    assert_eq!(meta.correlation_id.as_deref(), Some("JKJaXmPLvHcESHA="));
    assert_eq!(meta.source_address.as_deref(), Some("192.0.2.1"));
    assert_eq!(meta.trace_id.as_deref(), Some("Root=1-5759e988-bd862e3fe1be46a994272793"));
}
