//! North depot, tried as ledgerline itself is: `PROOFS=long cargo test --profile fast
//! --test proofs` tries the application for minutes.

use fastrand::Rng;
use ledgerline::spec::valid;
use ledgerline_proofs::application::{Application, History};

fn application() -> Application {
    Application::new::<north_depot::All>(
        "north-depot",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../model/shapes"),
    )
    .aggregate::<north_depot::price_tag::PriceTag>(price_tag, |state| format!("{state:?}"))
    .aggregate::<north_depot::stock_item::StockItem>(stock_item, |state| format!("{state:?}"))
    .commands("stock-item-commands", north_depot_functions::commands::stock_item::routes)
    .log_projector("StockJournalTable", north_depot::views::stock_journal::VIEW)
    .log_projector("StockTotalsTable", north_depot::views::stock_totals::VIEW)
    .state_projector("StockCardsTable", north_depot::views::stock_cards::VIEW)
    .state_projector("StockOwnersTable", north_depot::views::stock_owners::VIEW)
    .state_projector("StockSignsTable", north_depot::views::stock_signs::VIEW)
}

/// Price tag: it is printed.
fn price_tag(name: &str, _: &mut Rng) -> History<north_depot::price_tag::PriceTag> {
    let commands = vec![north_depot::price_tag::Command::Create(valid("First"))];
    History { id: name.into(), actor: "ada".into(), commands }
}

/// Stock item: it is created, and renamed a few times.
fn stock_item(name: &str, rng: &mut Rng) -> History<north_depot::stock_item::StockItem> {
    use north_depot::stock_item::Command;
    let mut commands = vec![Command::Create(valid("First"))];
    commands.extend((0..rng.u32(1..6)).map(|_| Command::Rename(valid(rng.u8(..).to_string()))));
    History { id: name.into(), actor: "ada".into(), commands }
}

ledgerline_proofs::application_tests!(application());
