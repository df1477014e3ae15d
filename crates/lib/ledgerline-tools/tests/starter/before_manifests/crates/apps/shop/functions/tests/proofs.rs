//! Shop, tried as ledgerline itself is: `cargo run --profile fast -p proofs` tries it for minutes.

use fastrand::Rng;
use ledgerline::spec::valid;
use ledgerline_proofs::application::{Application, History};

fn application() -> Application {
    Application::new::<shop::All>("shop", concat!(env!("CARGO_MANIFEST_DIR"), "/../model/shapes"))
        .aggregate::<shop::item::Item>(item, |state| format!("{state:?}"))
        .commands("item-commands", shop_functions::commands::item::routes)
        .log_projector("ItemHistoryTable", shop::views::item_history::VIEW)
        .state_projector("ItemsTable", shop::views::items::VIEW)
}

/// Item: it is created, and renamed a few times.
fn item(name: &str, rng: &mut Rng) -> History<shop::item::Item> {
    use shop::item::Command;
    let mut commands = vec![Command::Create(valid("First"))];
    commands.extend((0..rng.u32(1..6)).map(|_| Command::Rename(valid(rng.u8(..).to_string()))));
    History { id: name.into(), actor: "ada".into(), commands }
}

ledgerline_proofs::application_tests!(application());
