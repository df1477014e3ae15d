//! The output of the program. A line that cannot be written is dropped, because a panic would end
//! the request that prints the line. The reader of the output may have closed the pipe (`local |
//! grep -m1 Ready`).

use std::{
    fmt::Arguments,
    io::{Write, stderr},
};

pub(crate) fn line(text: Arguments<'_>) {
    // The test harness captures only the output of `println!`, and shows the output if the test
    // fails.
    #[cfg(test)]
    {
        println!("{text}");
    }
    #[cfg(not(test))]
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

pub(crate) fn error_line(text: Arguments<'_>) {
    let _ = writeln!(stderr().lock(), "{text}");
}
