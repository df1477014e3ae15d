/// Returns a template without the marks of its generated blocks, as if it were written by hand. In
/// such a template, each slip has its own message.
pub(super) fn by_hand(template: &str) -> String {
    let lines = template.lines().filter(|line| {
        let line = line.trim();
        !line.starts_with("# <generated ") && line != "# </generated>"
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// Returns a template with each flow collection on one line, so that a slip can name a whole
/// collection.
pub(super) fn unwrapped(template: &str) -> String {
    let mut unwrapped = String::new();
    let mut open = 0_i32;
    for line in template.lines() {
        let is_comment = line.trim_start().starts_with('#');
        let continues = open > 0 && !is_comment;
        unwrapped.push_str(if continues { line.trim_start() } else { line });
        if !is_comment {
            open += line
                .chars()
                .map(|c| i32::from("[{".contains(c)) - i32::from("]}".contains(c)))
                .sum::<i32>();
        }
        match (unwrapped.strip_suffix('\\'), open > 0 && !is_comment) {
            (Some(text), true) => unwrapped = text.to_owned(),
            (_, true) => unwrapped.push(' '),
            (_, false) => unwrapped.push('\n'),
        }
    }
    unwrapped
}
