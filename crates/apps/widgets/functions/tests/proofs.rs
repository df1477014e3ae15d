//! The proofs of the libraries, with widgets.

use fastrand::Rng;
use ledgerline::spec::valid;
use ledgerline_proofs::application::{Application, History};
use widgets::{
    All, views,
    widget::{Command, Widget},
};
use widgets_functions::commands;

fn application() -> Application {
    Application::new::<All>("widgets", concat!(env!("CARGO_MANIFEST_DIR"), "/../model/shapes"))
        .aggregate::<Widget>(history, |state| format!("{state:?}"))
        .commands("widget-commands", commands::widget::routes)
        .state_projector("WidgetsTable", views::widgets::VIEW)
}

/// Returns commands that create a widget and change it.
fn history(name: &str, rng: &mut Rng) -> History<Widget> {
    let create = Command::Create(valid("Cog"), valid("Round"), valid(1));
    let changes = (0..rng.u32(1..4)).map(|_| match rng.bool() {
        true => Command::UpdateStock(valid(rng.u32(..100))),
        false => Command::ChangeName(valid(rng.u8(..).to_string())),
    });
    let commands = [create].into_iter().chain(changes).collect();
    History { id: name.into(), actor: "ada".into(), commands }
}

ledgerline_proofs::application_tests!(application());
