//! The aggregate that the tests and examples of the libraries share, behind the feature `testing`.

pub mod tank;
