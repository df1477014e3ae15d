//! The values that commands of accounts and transfers are made of. A value that is not allowed cannot be made, so that no command can carry one.

use ledgerline::Text;

/// The largest amount and the largest balance, in minor units: 2^53 - 1, up to which every JSON reader holds numbers exactly.
pub const MAX_MINOR_UNITS: i64 = 9_007_199_254_740_991;

ledgerline::value_object! {
    /// An amount of money in minor units, from 1 to 2^53 - 1.
    pub struct Amount(i64),
    |amount| (1..=MAX_MINOR_UNITS).contains(&amount).then_some(amount),
    format!("an amount is a whole number of minor units from 1 to {MAX_MINOR_UNITS}")
}

ledgerline::value_object! {
    /// A currency, as an ISO 4217 code. Only the form is checked: three capital letters.
    pub struct Currency(String),
    |code| (code.len() == 3 && code.bytes().all(|b| b.is_ascii_uppercase())).then_some(code),
    "a currency is three capital letters, such as EUR"
}

/// The name of an account's owner, as the caller who opens the account writes it.
pub type Owner = Text<200>;

/// Why an operator decided something.
pub type Reason = Text<500>;

/// The payer's note.
pub type Reference = Text<140>;
