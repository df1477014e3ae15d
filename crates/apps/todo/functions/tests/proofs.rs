//! The proofs of the libraries, with todos.

use fastrand::Rng;
use ledgerline::spec::valid;
use ledgerline_proofs::application::{Application, History};
use todo::{
    All,
    todo::{Command, Status, Todo, Update},
    views::todos,
};
use todo_functions::commands;

fn application() -> Application {
    Application::new::<All>("todo", concat!(env!("CARGO_MANIFEST_DIR"), "/../model/shapes"))
        .aggregate::<Todo>(history, |state| format!("{state:?}"))
        .commands("todo-commands", commands::todo::routes)
        .state_projector("TodosTable", todos::VIEW)
}

/// Returns commands that create a todo, change it, and perhaps delete it.
fn history(name: &str, rng: &mut Rng) -> History<Todo> {
    let mut commands = vec![Command::Create(valid("a"), valid(""))];
    for number in 0..rng.u32(1..6) {
        let status = if rng.bool() { Status::Open } else { Status::Done };
        let title = Some(valid(number.to_string()));
        commands.push(Command::Update(Update { title, message: None, status: Some(status) }));
    }
    if rng.bool() {
        commands.push(Command::Delete);
    }
    History { id: name.into(), actor: "ada".into(), commands }
}

ledgerline_proofs::application_tests!(application());
