//! Welcomes new users with a mail.

use lambda_kit::config;
use process_managers::welcome_email::{WelcomeEmail, ses};
use read_models_dynamodb::ReadTable;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::process_manager::run(async |sdk, _| {
        let sender = config::parsed_or("MAIL_SENDER", String::new())?;
        let mails = ReadTable::new(aws_sdk_dynamodb::Client::new(&sdk), config::text("POSITIONS_TABLE")?);
        let ses = aws_sdk_sesv2::Client::from_conf(ses(&sdk).build());
        Ok(WelcomeEmail { mails, ses, sender: Some(sender).filter(|sender| !sender.is_empty()) })
    })
    .await
}
