//! The messages of the program for command lines that it refuses.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

#[test]
fn a_missing_template_and_an_unknown_parameter_are_named() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_local"))
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .args(arguments)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(&["--template", "nowhere.yaml"]).contains("nowhere.yaml"));
    assert!(run(&["--parameter-overrides", "Colour=red"]).contains("there is no parameter Colour"));
}
