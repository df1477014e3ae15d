//! Todos, tried as ledgerline itself is.

use fastrand::Rng;
use ledgerline_proofs::application::{Application, History};
use todo::{
    All,
    todo::{Command, Todo},
    views::todos,
};
use todo_functions::commands;

fn application() -> Application {
    Application::new::<All>("todo", concat!(env!("CARGO_MANIFEST_DIR"), "/../model/shapes"))
        .aggregate::<Todo>(history, |state| format!("{state:?}"))
        .commands::<Todo>("todo-commands", commands::todo::route)
        .state_projector::<Todo, _>("TodosTable", todos::TABLE, todos::row)
}

/// A todo that is changed and perhaps deleted.
fn history(name: &str, rng: &mut Rng) -> History<Todo> {
    let mut commands = vec![Command::Create { title: "a".into(), message: String::new() }];
    for number in 0..rng.u32(1..6) {
        let title = Some(number.to_string());
        commands.push(Command::Update { title, message: None, done: Some(rng.bool()) });
    }
    if rng.bool() {
        commands.push(Command::Delete);
    }
    History { id: name.into(), actor: "ada".into(), commands }
}

ledgerline_proofs::application_tests!(application());
