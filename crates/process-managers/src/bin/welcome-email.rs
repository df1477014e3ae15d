//! Welcomes new users with a mail.

use std::time::Duration;

use aws_sdk_sesv2::config::{Builder, retry::RetryConfig, timeout::TimeoutConfig};
use lambda_kit::config;
use process_managers::welcome_email::WelcomeEmail;
use read_models_dynamodb::ReadTable;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_kit::Error> {
    lambda_kit::process_manager::run(async |sdk, _| {
        let sender = config::parsed_or("MAIL_SENDER", String::new())?;
        let mails = ReadTable::new(aws_sdk_dynamodb::Client::new(&sdk), config::text("POSITIONS_TABLE")?);
        // Once, and with time to answer: what was sent and not heard of cannot be sent again.
        let timeout = TimeoutConfig::builder().operation_timeout(Duration::from_secs(6)).build();
        let ses = Builder::from(&sdk).retry_config(RetryConfig::disabled()).timeout_config(timeout);
        Ok(WelcomeEmail {
            mails,
            ses: aws_sdk_sesv2::Client::from_conf(ses.build()),
            sender: Some(sender).filter(|sender| !sender.is_empty()),
        })
    })
    .await
}
