//! The reserved concurrency of functions. A reservation of 0 stops a function. A function without
//! one shares the unreserved concurrency of the account.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;

use crate::{
    Output, WriteArgs,
    deployment::Deployment,
    records::{self, Record},
};

/// The options of `ledger concurrency`.
#[derive(Debug, Args)]
pub(crate) struct ConcurrencyArgs {
    /// The logical ids of functions, or their ends: FanoutFunction, CommandsFunction. Without any,
    /// all functions.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    functions: Vec<String>,
    /// Reserve this concurrency for each function, out of the account's. 0 stops the functions:
    /// their events are retried, and then become dead letters.
    #[arg(long, conflicts_with = "release", requires_all = ["functions", "write"])]
    reserve: Option<i32>,
    /// Remove the reservation of each function, also that of the template. The function then shares
    /// the unreserved concurrency of the account.
    #[arg(long, requires_all = ["functions", "write"])]
    release: bool,
    #[command(flatten)]
    write_args: WriteArgs,
}

/// Prints the reservations, or changes them. Returns `false` if a change fails, or the operator
/// declines.
pub(crate) async fn run(
    deployment: &Deployment,
    options: &ConcurrencyArgs,
    out: Output,
) -> Result<bool> {
    if deployment.is_local {
        bail!("on the local stack, functions have no limits");
    }
    let reserved = reservations(deployment, &options.functions).await?;
    let row = |(function, reserved): (&String, &Option<i32>)| json!({ "function": function, "reserved": reserved });
    let rows: Vec<_> = reserved.iter().map(row).collect();
    out.rows(&["function", "reserved"], &rows);
    let to = match (options.reserve, options.release) {
        (Some(number), _) => Some(number),
        (None, true) => None,
        (None, false) => {
            if options.write_args.write {
                bail!("choose a change: --reserve or --release");
            }
            let limit = deployment.lambda.get_account_settings().send().await;
            let limit = limit.context("the account's limit cannot be read")?.account_limit;
            let (all, left) = limit.map_or((0, None), |limit| {
                (limit.concurrent_executions, limit.unreserved_concurrent_executions)
            });
            let left = left.unwrap_or(all);
            out.line_or_note(&json!({ "account": all, "left": left }), || {
                format!(
                    "\nthe account runs {all} invocations at once, of which {left} are not reserved"
                )
            });
            return Ok(true);
        }
    };
    let what = match to {
        Some(0) => format!("stop {} functions", reserved.len()),
        Some(number) => format!("reserve {number} for each of {} functions", reserved.len()),
        None => format!("release {} functions", reserved.len()),
    };
    if !options.write_args.confirm(&format!("{what}?"))? {
        return Ok(false);
    }
    let why = options.write_args.why();
    let detail = json!(rows);
    records::store_if_possible(deployment, Record { kind: "concurrency", what, why, detail })
        .await?;
    let mut is_done = true;
    for function in reserved.keys() {
        if let Err(error) = set_reservation(deployment, function, to).await {
            is_done = false;
            eprintln!("`{function}` keeps its reservation: {error:#}");
        }
    }
    Ok(is_done)
}

/// Returns the reservations of the named functions, or of all; `None` for a function without one.
///
/// # Errors
/// When no function has one of the names.
async fn reservations(
    deployment: &Deployment,
    named: &[String],
) -> Result<BTreeMap<String, Option<i32>>> {
    let ids: Vec<_> = deployment
        .resources_of_type("AWS::Lambda::Function")
        .map(|(id, _)| id.to_owned())
        .collect();
    if let Some(unknown) = named.iter().find(|end| !ids.iter().any(|id| id.ends_with(end.as_str())))
    {
        bail!(
            "no function has a logical id that ends with `{unknown}`: `ledger resources` lists all"
        );
    }
    let mut reserved = BTreeMap::new();
    for id in ids {
        if named.is_empty() || named.iter().any(|end| id.ends_with(end.as_str())) {
            let found = reservation(deployment, &id).await?;
            reserved.insert(id, found);
        }
    }
    Ok(reserved)
}

/// Returns the reservation of a function.
pub(crate) async fn reservation(deployment: &Deployment, id: &str) -> Result<Option<i32>> {
    let get =
        deployment.lambda.get_function_concurrency().function_name(&deployment.function(id)?.name);
    let found =
        get.send().await.with_context(|| format!("the reservation of `{id}` cannot be read"))?;
    Ok(found.reserved_concurrent_executions)
}

async fn set_reservation(deployment: &Deployment, function: &str, to: Option<i32>) -> Result<()> {
    let name = &deployment.function(function)?.name;
    match to {
        Some(number) => {
            let put = deployment.lambda.put_function_concurrency().function_name(name);
            put.reserved_concurrent_executions(number).send().await?;
        }
        None => {
            deployment.lambda.delete_function_concurrency().function_name(name).send().await?;
        }
    }
    Ok(())
}
