//! Transfers of money, as a saga. Until a transfer has ended, each of its events makes one command
//! to an account due. The outcome of that command is recorded with the transfer, as its next event.

use std::num::NonZeroUsize;

use bank::{
    account::{self, Account, Booking},
    transfer::{Command, Event, Order, Step, Transfer},
    values::{Amount, Currency, Reference},
};
use ledgerline::{
    Aggregate, Cache, Commit, Consistency, EventStore, Invalid, decode, load, manifest::Manifest,
};
use ledgerline_lambda::{
    metrics,
    process_manager::{Due, Reaction},
    queue::ApplyError,
};

/// The counter of transfers whose money neither account accepts. The alarm of this name notifies an
/// operator.
const STUCK_TRANSFERS: &str = "StuckTransfers";

/// The number of accounts, and of transfers, that a warm instance caches.
const CACHED_STREAMS: NonZeroUsize = NonZeroUsize::new(1_000).expect("is not zero");

/// Sends due commands, and records their outcomes.
#[derive(Debug)]
pub struct Transfers<S> {
    store: S,
    accounts: Cache<Account>,
    transfers: Cache<Transfer>,
}

impl<S> Transfers<S> {
    /// Creates the process manager for this store, which has the accounts and the transfers.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self { store, accounts: Cache::new(CACHED_STREAMS), transfers: Cache::new(CACHED_STREAMS) }
    }
}

impl<S: EventStore> Reaction for Transfers<S> {
    const OF: &'static [&'static str] = &[Transfer::CATEGORY];

    const COMMANDS: &'static [&'static str] = &[Account::CATEGORY, Transfer::CATEGORY];

    fn manifest(manifest: Manifest) -> Manifest {
        manifest.metric(STUCK_TRANSFERS)
    }

    async fn react(&self, commit: &Commit) -> Result<(), ApplyError> {
        for recorded in &commit.events {
            let event = decode::<Transfer>(recorded)
                .map_err(|source| ApplyError::changes(commit, source))?;
            if let Some(step) = Step::after(&event) {
                self.step(commit, step).await?;
            } else if let Event::TransferRefundRefused { reason }
            | Event::TransferSettlementRefused { reason } = &event
            {
                // The money is on no account, and only an operator's decision moves it: the alarm
                // notifies an operator.
                tracing::error!(stream = %commit.stream, version = commit.version, reason, "a transfer is stuck");
                metrics::count(STUCK_TRANSFERS);
            }
        }
        Ok(())
    }
}

impl<S: EventStore> Transfers<S> {
    async fn step(&self, commit: &Commit, step: Step) -> Result<(), ApplyError> {
        let transfer =
            load::<Transfer>(&self.store, &commit.stream, None, Consistency::Strong).await?.state;
        let Some(order) = transfer.order().filter(|_| transfer.awaits() == Some(step)) else {
            // The outcome is already recorded, and the commit was redelivered. The log shows this
            // even if the positions and the idempotency records are lost: without this check, the
            // money would move again.
            tracing::info!(stream = %commit.stream, version = commit.version, outcome = "done before", "transfer");
            return Ok(());
        };
        let settlement = order.settlement.as_ref();
        let (name, record, account) = match step {
            Step::Debit => ("debit", "record-debit", &order.from_account_id),
            Step::Credit => ("credit", "record-credit", &order.to_account_id),
            Step::Refund => ("refund", "record-refund", &order.from_account_id),
            Step::Settle(_) => {
                let settlement = settlement.ok_or_else(|| {
                    ApplyError::Effect("the transfer has no settlement".to_owned())
                })?;
                ("settle", "record-settlement", &settlement.to_account_id)
            }
        };
        let stream =
            Account::stream(account).map_err(|error| ApplyError::Effect(error.to_string()))?;
        // An operator's decision is not the payer's doing.
        let decided = settlement.filter(|_| matches!(step, Step::Settle(_)));
        let actor =
            decided.map_or(&order.requested_by, |settlement| &settlement.requested_by).as_deref();
        // A rule of the values may be stricter than at the request, and money under way must not be
        // lost. So the message fails, and its dead letter notifies an operator.
        let command = &account_command(step, order)
            .map_err(|invalid| ApplyError::Effect(invalid.to_string()))?;
        let due = Due::<Account> { cause: commit, step: name, stream: &stream, command, actor };
        let outcome = due.send(&self.store, &self.accounts).await?;
        let command = &Command::Record { step, outcome };
        let due =
            Due::<Transfer> { cause: commit, step: record, stream: &commit.stream, command, actor };
        let recorded = due.send(&self.store, &self.transfers).await?;
        recorded
            .map_err(|code| ApplyError::Effect(format!("the transfer refused the outcome: {code}")))
    }
}

fn account_command(step: Step, order: &Order) -> Result<account::Command, Invalid> {
    let currency = Currency::new(&*order.currency)?;
    let reference = order.reference.as_deref().map(Reference::from_event);
    let booking = Booking { amount: Amount::new(order.amount)?, reference };
    Ok(match step {
        Step::Debit => account::Command::Send(booking, currency),
        Step::Credit | Step::Refund | Step::Settle(_) => {
            account::Command::Receive(booking, currency)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stricter rule must not hold up money under way.
    #[test]
    fn a_stored_reference_that_no_client_may_send_moves_with_the_money() {
        let stored = "rent\u{200b}";
        assert!(Reference::new(stored).is_err());
        let order = Order {
            from_account_id: "a".into(),
            to_account_id: "b".into(),
            amount: 30,
            currency: "EUR".into(),
            reference: Some(stored.into()),
            requested_by: None,
            reason: None,
            settlement: None,
        };
        for step in [Step::Debit, Step::Credit, Step::Refund, Step::Settle(1)] {
            let (account::Command::Send(booking, _) | account::Command::Receive(booking, _)) =
                account_command(step, &order).unwrap()
            else {
                panic!("money moves")
            };
            assert_eq!(booking.reference.unwrap().get(), stored);
        }
    }
}
