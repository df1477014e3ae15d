//! The ledger of the bank: all bookings of all accounts in one order, each with the bank's sums
//! after it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp, civil::Date, tz::TimeZone};
use ledgerline::{
    Aggregate, Changes, ChangesError, Commit, LogTable, OrderedView, Write, all::time_in_order,
    decode,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::transactions::Kind;
use crate::{
    account::{Account, Event},
    transfer::Transfer,
};

/// The table that holds the rows.
pub const TABLE: LogTable =
    LogTable { variable: "BOOKINGS_TABLE", partition: "day", sort: "entry" };

/// The view.
pub const VIEW: OrderedView<Books, String> =
    OrderedView { table: TABLE, of: &[Account::CATEGORY], writes: &[Write::Put], changes };

/// The longest delay until a commit is in `$all`. The table's stream keeps a record for a day, and
/// the reconciler covers one more day.
const LATEST: SignedDuration = SignedDuration::from_hours(48);

/// The number of currencies with sums in the books: the first ones that were booked. ISO 4217 has
/// some 180 codes, and accounts opened without a check of the code may have any other. Without this
/// limit, callers would decide the size of the state, and beyond 64 KB the view would stop.
const MOST_CURRENCIES: usize = 256;

/// A day, in UTC: a partition of the ledger.
pub type Day = Date;

/// The books after a booking.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Books {
    /// The number of the last booking; 0 before the first.
    pub number: u64,
    /// The time of the last booking in the order of the bookings: see [`time_in_order`].
    pub at: Timestamp,
    /// The sums by currency, for the first 256 currencies of the log.
    pub held: BTreeMap<String, Sums>,
}

impl Books {
    /// The day of the last booking, in UTC.
    #[must_use]
    pub fn day(&self) -> Day {
        self.at.to_zoned(TimeZone::UTC).date()
    }

    /// Returns the sums of a currency, if it is one of the first [`MOST_CURRENCIES`]. This depends
    /// on the log alone, so that a rebuilt view equals a live one.
    fn sums(&mut self, currency: &str) -> Option<&mut Sums> {
        if self.held.len() >= MOST_CURRENCIES {
            return self.held.get_mut(currency);
        }
        Some(self.held.entry(currency.to_owned()).or_default())
    }
}

/// The bank's sums in a currency, in minor units. An account holds up to 2⁵³ of them, so the sum of
/// some thousand accounts exceeds 64 bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sums {
    /// The sum of all balances.
    pub in_accounts: i128,
    /// The money that transfers have debited, and not yet credited or refunded.
    pub under_way: i128,
}

impl Sums {
    /// Returns the sums in the form of a row.
    #[must_use]
    pub fn held(self) -> Held {
        let shown = |sum: i128| {
            let limit = if sum < 0 { i64::MIN } else { i64::MAX };
            i64::try_from(sum).unwrap_or(limit)
        };
        Held { in_accounts: shown(self.in_accounts), under_way: shown(self.under_way) }
    }
}

/// The bank's sums in a currency, in minor units, in the form of rows and responses. A sum beyond
/// 64 bits is shown as the nearest 64-bit number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The sum of all balances.
    pub in_accounts: i64,
    /// The money that transfers have debited, and not yet credited or refunded.
    pub under_way: i64,
}

/// One booking.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Partition key: the day, in UTC.
    pub day: Day,
    /// Sort key: the number, so that the text order is the order of the bookings.
    pub entry: String,
    /// The booking's number: 1, 2, 3 … without gaps.
    pub number: u64,
    /// The account.
    pub account_id: String,
    /// The version of the account after the commit.
    pub version: u64,
    /// Whether the booking is a credit or a debit.
    pub kind: Kind,
    /// The amount in minor units.
    pub amount: i64,
    /// The currency.
    pub currency: String,
    /// The balance of the account after the booking, in minor units.
    pub balance: i64,
    /// The bank's sums in this currency after the booking; `None` if the currency is not one of the
    /// first 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// The time of the commit, at most five minutes after that of its segment of `$all`.
    pub at: Timestamp,
}

/// Adds a row for each booking of a commit. `currency` is that of the account, from its first
/// commit on.
///
/// # Errors
/// When an event of the commit cannot be read.
pub fn changes(
    books: &mut Books,
    currency: &mut String,
    commit: &Commit,
    changes: &mut Changes,
) -> Result<(), ChangesError> {
    // The commit of a transfer's booking names the transfer's commit as its cause.
    let cause = commit.meta.causation_id.as_deref().unwrap_or_default();
    let of_a_transfer =
        cause.strip_prefix(Transfer::CATEGORY).is_some_and(|rest| rest.starts_with('-'));
    for recorded in &commit.events {
        let (kind, amount, balance) = match decode::<Account>(recorded)? {
            Event::AccountOpened { currency: of, .. } => {
                *currency = of;
                continue;
            }
            Event::AccountCredited { amount, balance, .. } => (Kind::Credit, amount, balance),
            Event::AccountDebited { amount, balance, .. } => (Kind::Debit, amount, balance),
            Event::AccountClosed { .. } => continue,
        };
        let change = if kind == Kind::Credit { i128::from(amount) } else { -i128::from(amount) };
        let held = books.sums(currency).map(|sums| {
            sums.in_accounts = sums.in_accounts.saturating_add(change);
            if of_a_transfer {
                sums.under_way = sums.under_way.saturating_sub(change);
            }
            sums.held()
        });
        books.number += 1;
        books.at = time_in_order(books.at, commit.at, LATEST);
        changes.put(&Row {
            day: books.day(),
            entry: format!("{:020}", books.number),
            number: books.number,
            account_id: commit.stream.id().to_owned(),
            version: commit.version,
            kind,
            amount,
            currency: currency.clone(),
            balance,
            held,
            at: commit.at,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ledgerline::{Meta, StreamId, encode, shapes::check_rows};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn commit(id: &str, version: u64, cause: Option<&str>, event: &Event) -> Commit {
        Commit {
            stream: StreamId::new("account", id).unwrap(),
            version,
            events: vec![encode::<Account>(event).unwrap()],
            state: None,
            command: "c".into(),
            at: Timestamp::from_second(1_795_253_400 - i64::try_from(version).unwrap()).unwrap(),
            meta: Meta { causation_id: cause.map(ToOwned::to_owned), ..Meta::default() },
        }
    }

    fn opened(currency: &str) -> Event {
        let owner = "Ada".into();
        let currency = currency.into();
        Event::AccountOpened { owner, currency, opened_by: None, booked_on: Date::default() }
    }

    fn credited(amount: i64, balance: i64) -> Event {
        Event::AccountCredited { amount, balance, reference: None, booked_on: Date::default() }
    }

    fn debited(amount: i64, balance: i64) -> Event {
        Event::AccountDebited { amount, balance, reference: None, booked_on: Date::default() }
    }

    #[test]
    fn money_under_way_is_counted_until_it_arrives_and_currencies_are_not_added_up() {
        let (mut books, mut a, mut b, mut c) =
            (Books::default(), String::new(), String::new(), String::new());
        let mut rows = Changes::new(TABLE);
        let mut add = |memory: &mut String, commit| {
            changes(&mut books, memory, &commit, &mut rows).unwrap();
            books.held.clone()
        };
        add(&mut a, commit("a", 1, Some("request-1"), &opened("EUR")));
        add(&mut b, commit("b", 1, None, &opened("EUR")));
        add(&mut c, commit("c", 1, None, &opened("USD")));
        add(&mut a, commit("a", 2, Some("request-2"), &credited(100, 100)));
        add(&mut c, commit("c", 2, None, &credited(7, 7)));
        let held = add(&mut a, commit("a", 3, Some("transfer-t:1"), &debited(30, 70)));
        assert_eq!(held["EUR"], Sums { in_accounts: 70, under_way: 30 });
        let held = add(&mut b, commit("b", 2, Some("transfer-t:2"), &credited(30, 30)));
        assert_eq!(held["EUR"], Sums { in_accounts: 100, under_way: 0 });
        assert_eq!(held["USD"], Sums { in_accounts: 7, under_way: 0 });
        let mut found = BTreeMap::new();
        rows.fold(&mut found);
        let found: Vec<Row> =
            found.into_values().map(|row| serde_json::from_value(row.into()).unwrap()).collect();
        assert_eq!(found.iter().map(|row| row.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(
            found.iter().map(|row| row.currency.as_str()).collect::<Vec<_>>(),
            ["EUR", "USD", "EUR", "EUR"]
        );
        assert!(found.windows(2).all(|rows| rows[0].day <= rows[1].day), "days do not go back");
    }

    #[test]
    fn sums_beyond_64_bits_are_stored_and_shown_as_the_nearest_number() {
        let mut books = Books::default();
        let mut add = |id: &str, event: &Event| {
            let mut memory = "EUR".to_owned();
            let mut rows = Changes::new(TABLE);
            changes(&mut books, &mut memory, &commit(id, 2, None, event), &mut rows).unwrap();
            books = serde_json::from_str(&serde_json::to_string(&books).unwrap()).unwrap();
            let (_, change) = rows.iter().next().unwrap();
            let ledgerline::changes::Change::Put(fields) = change else { panic!("{change:?}") };
            fields["held"]["inAccounts"].clone()
        };
        assert_eq!(add("a", &credited(i64::MAX, i64::MAX)), i64::MAX);
        assert_eq!(add("b", &credited(7, 7)), i64::MAX);
        assert_eq!(add("a", &debited(i64::MAX, 0)), 7);
    }

    #[test]
    fn the_state_stops_growing_with_the_number_of_currencies() {
        let mut books = Books::default();
        let mut book = |currency: &str| {
            let mut memory = currency.to_owned();
            let mut rows = Changes::new(TABLE);
            changes(&mut books, &mut memory, &commit("a", 2, None, &credited(1, 1)), &mut rows)
                .unwrap();
            let (_, change) = rows.iter().next().unwrap();
            let ledgerline::changes::Change::Put(fields) = change else { panic!("{change:?}") };
            serde_json::from_value::<Row>(json!(fields)).unwrap().held
        };
        // Given accounts in more currencies than the books keep sums for,
        let codes = |first: char| ('A'..='Z').map(move |last| format!("{first}Q{last}"));
        let codes: Vec<_> = ('A'..='Z').flat_map(codes).collect();
        let held: Vec<_> = codes.iter().map(|code| book(code)).collect();
        // then the first 256 have sums, and the others have none.
        let one = Held { in_accounts: 1, under_way: 0 };
        assert!(held.iter().enumerate().all(|(place, held)| *held == (place < 256).then_some(one)));
        assert_eq!(book("AQA"), Some(Held { in_accounts: 2, ..one }));
        assert_eq!((books.number, books.held.len()), (677, 256));
        let largest = Sums { in_accounts: i128::MIN, under_way: i128::MIN };
        books.held.values_mut().for_each(|sums| *sums = largest);
        assert!(serde_json::to_string(&books).unwrap().len() < 64 * 1024 * 3 / 4);
    }

    /// The number of seconds by which a wrong clock is off.
    fn wrong() -> impl Strategy<Value = i64> {
        prop_oneof![-2_000_000_000_i64..-1, 4_000_000..9_000_000_000_i64]
    }

    proptest! {
        /// A clock that is more than two days ahead, or behind by any time, changes the day of its
        /// own bookings only.
        #[test]
        fn a_booking_has_another_day_only_if_its_own_clock_is_wrong(
            wrong in prop::collection::vec(prop::option::weighted(0.3, wrong()), 1..20),
        ) {
            let mut books = Books::default();
            let mut memory = "EUR".to_owned();
            for (number, wrong) in wrong.into_iter().enumerate() {
                let right = Timestamp::from_second(1_795_253_400 + 40_000 * i64::try_from(number).unwrap()).unwrap();
                let mut booking = commit("a", 2, None, &credited(1, 1));
                booking.at = wrong.map_or(right, |wrong| right + SignedDuration::from_secs(wrong));
                changes(&mut books, &mut memory, &booking, &mut Changes::new(TABLE)).unwrap();
                prop_assert!(wrong.is_some() || books.at == right, "{} for {right}", books.at);
            }
        }
    }

    #[test]
    fn rows_of_every_shape_that_was_written_are_read() {
        check_rows::<Row>(include_str!("../../shapes/rows/bookings.json"));
        check_rows::<Books>(include_str!("../../shapes/rows/books.json"));
    }
}
