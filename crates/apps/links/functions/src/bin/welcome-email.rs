//! Welcomes new users with a mail.

use ledgerline_dynamodb::ReadTable;
use ledgerline_lambda::{config, process_manager::POSITIONS};
use links_functions::process_managers::welcome_email::{WelcomeEmail, ses};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::process_manager::run(async |sdk, _| {
        let sender = config::parsed_or("MAIL_SENDER", String::new())?;
        let mails = ReadTable::new(aws_sdk_dynamodb::Client::new(&sdk), config::text(POSITIONS.variable)?);
        let ses = aws_sdk_sesv2::Client::from_conf(ses(&sdk).build());
        Ok(WelcomeEmail { mails, ses, sender: Some(sender).filter(|sender| !sender.is_empty()) })
    })
    .await
}
