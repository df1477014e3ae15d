//! The values of the commands of accounts and transfers. A value is checked when it is built, so no
//! command can carry an invalid one.

use ledgerline::Text;

/// The largest amount and the largest balance, in minor units: 2^53 - 1. Up to this number, every
/// JSON reader holds numbers exactly.
pub const MAX_MINOR_UNITS: i64 = 9_007_199_254_740_991;

ledgerline::value_object! {
    /// An amount of money in minor units, from 1 to 2^53 - 1.
    pub struct Amount(i64),
    |amount| (1..=MAX_MINOR_UNITS).contains(&amount).then_some(amount),
    format!("an amount is a whole number of minor units from 1 to {MAX_MINOR_UNITS}"),
    { "minimum": 1, "maximum": MAX_MINOR_UNITS, "examples": [5_000] }
}

ledgerline::value_object! {
    /// The currency of an account or of a transfer. Only the form is checked: accounts opened
    /// without [`ListedCurrency`] may have any three capital letters, and stay valid.
    pub struct Currency(String),
    |code| (code.len() == 3 && code.bytes().all(|b| b.is_ascii_uppercase())).then_some(code),
    "a currency is three capital letters, such as EUR",
    { "pattern": "^[A-Z]{3}$", "examples": ["EUR"] }
}

ledgerline::value_object! {
    /// The currency of a new account: a code of ISO 4217. The ledger of bookings stores a total for
    /// each currency, so callers must not be able to add any number of them.
    pub struct ListedCurrency(String),
    |code: String| is_listed(&code).then_some(code),
    "the currency of a new account is a current code of ISO 4217, such as EUR",
    { "enum": current_codes(), "examples": ["EUR"] }
}

/// The codes of `iso_currency` that a new account may not have: currencies that ISO 4217 withdrew,
/// and the codes for tests and for no currency.
const REFUSED_CODES: [&str; 7] = ["BGN", "CUC", "HRK", "SLL", "XTS", "XXX", "ZWL"];

fn is_listed(code: &str) -> bool {
    iso_currency::Currency::from_code(code).is_some() && !REFUSED_CODES.contains(&code)
}

/// Returns the codes that a new account may have.
fn current_codes() -> Vec<String> {
    let letters = || 'A'..='Z';
    let pairs = letters().flat_map(|first| letters().map(move |second| (first, second)));
    let codes = pairs
        .flat_map(|(first, second)| letters().map(move |third| format!("{first}{second}{third}")));
    codes.filter(|code| is_listed(code)).collect()
}

/// The name of an account's owner, as the caller who opens the account writes it.
pub type Owner = Text<200>;

/// The reason for an operator's decision.
pub type Reason = Text<500>;

/// The payer's note.
pub type Reference = Text<140>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_opened_in_a_listed_currency_and_others_stay_valid() {
        for code in ["EUR", "USD", "JPY", "CHF", "VES", "ZWG", "SLE", "XCG"] {
            assert!(ListedCurrency::new(code).is_ok() && Currency::new(code).is_ok(), "{code}");
        }
        let withdrawn = ["ANG", "BGN", "CUC", "HRK", "SLL", "USS", "XTS", "XXX", "ZWB", "ZWL"];
        for code in ["ZZZ", "QQQ", "AAA"].into_iter().chain(withdrawn) {
            assert!(ListedCurrency::new(code).is_err() && Currency::new(code).is_ok(), "{code}");
        }
        for code in ["eur", "euro", "EU", "", "€UR", "EUR "] {
            assert!(ListedCurrency::new(code).is_err() && Currency::new(code).is_err(), "{code}");
        }
    }
}
