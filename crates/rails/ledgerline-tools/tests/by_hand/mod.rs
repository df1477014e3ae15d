/// A template that is written by hand: without the lines that make blocks generated ones. There,
/// each slip has a message of its own.
pub(super) fn by_hand(template: &str) -> String {
    let lines = template.lines().filter(|line| {
        let line = line.trim();
        !line.starts_with("# <generated ") && line != "# </generated>"
    });
    lines.map(|line| format!("{line}\n")).collect()
}
