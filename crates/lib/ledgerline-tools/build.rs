//! Rebuilds the package after a change in the folder of the embedded starter. Without this, cargo
//! does not notice a new file there.

fn main() {
    println!("cargo::rerun-if-changed=starter");
}
