//! Transfers of money, as a saga: each event of a transfer makes one command to an account due, and what comes of it is
//! recorded with the transfer, which is the next event.

use std::num::NonZeroUsize;

use bank::{
    account::{self, Account, Booking},
    transfer::{Command, Event, Order, Step, Transfer},
    values::{Amount, Currency, Reference},
};
use ledgerline::{Aggregate, Cache, Commit, Consistency, EventStore, Invalid, decode, load};
use ledgerline_lambda::{
    fifo::ApplyError,
    metrics,
    needs::Needs,
    process_manager::{Due, Reaction},
};

/// Counted when the money of a transfer can go neither on nor back by itself: the alarm of this name tells somebody.
const STUCK_TRANSFERS: &str = "StuckTransfers";

/// Accounts and transfers that a warm instance remembers.
const CACHED_STREAMS: NonZeroUsize = NonZeroUsize::new(1_000).expect("is not zero");

/// Sends the commands.
#[derive(Debug)]
pub struct Transfers<S> {
    store: S,
    accounts: Cache<Account>,
    transfers: Cache<Transfer>,
}

impl<S> Transfers<S> {
    /// Sends commands to the accounts in this store, where the transfers are too.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self { store, accounts: Cache::new(CACHED_STREAMS), transfers: Cache::new(CACHED_STREAMS) }
    }
}

impl<S: EventStore> Reaction for Transfers<S> {
    const OF: &'static [&'static str] = &[Transfer::CATEGORY];

    fn needs(needs: Needs) -> Needs {
        needs.commands(&[Account::CATEGORY, Transfer::CATEGORY]).metric(STUCK_TRANSFERS)
    }

    async fn react(&self, commit: &Commit) -> Result<(), ApplyError> {
        for recorded in &commit.events {
            let event = decode::<Transfer>(recorded).map_err(|source| ApplyError::changes(commit, source))?;
            if let Some(step) = Step::after(&event) {
                self.step(commit, step).await?;
            } else if let Event::TransferRefundRefused { reason } = &event {
                // Money is neither here nor there: an alarm is on this.
                tracing::error!(stream = %commit.stream, version = commit.version, reason, "a transfer is stuck");
                metrics::count(STUCK_TRANSFERS);
            }
        }
        Ok(())
    }
}

impl<S: EventStore> Transfers<S> {
    async fn step(&self, commit: &Commit, step: Step) -> Result<(), ApplyError> {
        let transfer = load::<Transfer>(&self.store, &commit.stream, None, Consistency::Strong).await?.state;
        let Some(order) = transfer.order().filter(|_| transfer.awaits() == Some(step)) else {
            // Recorded long ago, and replayed: whatever was forgotten of it since, the log has it.
            tracing::info!(stream = %commit.stream, version = commit.version, outcome = "done before", "transfer");
            return Ok(());
        };
        let (name, record, account) = match step {
            Step::Debit => ("debit", "record-debit", &order.from_account_id),
            Step::Credit => ("credit", "record-credit", &order.to_account_id),
            Step::Refund => ("refund", "record-refund", &order.from_account_id),
        };
        let stream = Account::stream(account).map_err(|error| ApplyError::Effect(error.to_string()))?;
        let actor = order.requested_by.as_deref();
        // A rule that was tightened since must not lose money that is under way: it stops here, and somebody is told.
        let command = &to_account(step, order).map_err(|invalid| ApplyError::Effect(invalid.to_string()))?;
        let due = Due::<Account> { cause: commit, step: name, stream: &stream, command, actor };
        let outcome = due.send(&self.store, &self.accounts).await?;
        let command = &Command::Record { step, outcome };
        let due = Due::<Transfer> { cause: commit, step: record, stream: &commit.stream, command, actor };
        let recorded = due.send(&self.store, &self.transfers).await?;
        recorded.map_err(|code| ApplyError::Effect(format!("the transfer did not take it: {code}")))
    }
}

fn to_account(step: Step, order: &Order) -> Result<account::Command, Invalid> {
    let currency = Currency::new(&*order.currency)?;
    let reference = order.reference.as_deref().map(Reference::new).transpose()?;
    let booking = Booking { amount: Amount::new(order.amount)?, reference };
    Ok(match step {
        Step::Debit => account::Command::Send(booking, currency),
        Step::Credit | Step::Refund => account::Command::Receive(booking, currency),
    })
}
