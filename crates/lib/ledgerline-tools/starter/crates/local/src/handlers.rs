//! The development binary: the handlers of all functions. `cargo run -p local` starts one process
//! of the binary for each function, so that a build links one program. No deployment contains the
//! binary.

use ledgerline_lambda::handlers::Handler;

const HANDLERS: &[&[Handler]] = &[
    // One line for each package with functions.
    fanout::HANDLERS,
    north_depot_functions::HANDLERS,
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ledgerline_lambda::Error> {
    ledgerline_lambda::handlers::run(HANDLERS).await
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use ledgerline_sam::template::{self, Source};

    #[test]
    fn the_development_binary_has_the_functions_of_the_template() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../template.yaml");
        let template = template::resolve_all(&Source::read(&path).unwrap()).unwrap();
        let functions: BTreeSet<_> =
            template.functions.into_iter().map(|function| function.binary).collect();
        let handlers: BTreeSet<_> = ledgerline_lambda::handlers::names(super::HANDLERS).collect();
        let one_sided: Vec<_> = handlers.symmetric_difference(&functions).collect();
        assert!(
            one_sided.is_empty(),
            "only in template.yaml, or only in `HANDLERS`: {one_sided:?}"
        );
    }
}
