//! The values that commands of accounts and transfers are made of. What is not allowed here cannot be asked for.

use ledgerline::Text;

/// The largest amount and the largest balance, in minor units: 2^53 - 1, what every JSON reader can hold exactly.
pub const MAX_MINOR_UNITS: i64 = 9_007_199_254_740_991;

ledgerline::value_object! {
    /// An amount of money in minor units, from 1 to 2^53 - 1.
    pub struct Amount(i64),
    |amount| (1..=MAX_MINOR_UNITS).contains(&amount).then_some(amount),
    format!("an amount is a whole number of minor units from 1 to {MAX_MINOR_UNITS}")
}

ledgerline::value_object! {
    /// An ISO 4217 code.
    pub struct Currency(String),
    |code| (code.len() == 3 && code.bytes().all(|b| b.is_ascii_uppercase())).then_some(code),
    "a currency is three capital letters, such as EUR"
}

/// Who owns an account, as the opener writes it.
pub type Owner = Text<200>;

/// The payer's note.
pub type Reference = Text<140>;
