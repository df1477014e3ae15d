//! The starter is embedded, and cargo does not see by itself that a file of it is new.

fn main() {
    println!("cargo::rerun-if-changed=starter");
}
