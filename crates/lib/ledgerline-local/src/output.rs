//! What the program prints. A line that cannot be written is dropped: the reader of the output may
//! have closed it (`local | grep -m1 Ready`), and a panic would end the request that printed it.

use std::{
    fmt::Arguments,
    io::{Write, stderr},
};

pub(crate) fn line(text: Arguments<'_>) {
    // The test harness captures only the lines of the macro, and shows them if the test fails.
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
