//! The generated blocks of a template: their markers, and the resources around them.

/// The prefix of the line that begins a block.
pub(crate) const BEGIN: &str = "# <generated ";
/// The line that ends a block.
pub(crate) const END: &str = "# </generated>";

/// Whether a block of this name holds a role.
pub(crate) fn is_role(name: &str) -> bool {
    name.ends_with("Role")
}

/// Whether a block of this text holds the role with this logical id.
pub(crate) fn has_role(text: &str, role: &str) -> bool {
    is_role(role) && text.lines().any(|line| line.trim() == format!("{BEGIN}{role}>"))
}

/// The logical id of the resource that contains the last of these lines.
pub(crate) fn resource_around<'t>(before: &[&'t str]) -> &'t str {
    let id = |line: &&'t str| {
        let id = line.strip_prefix("  ")?.split(':').next()?;
        (!id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric())).then_some(id)
    };
    before.iter().rev().find_map(id).unwrap_or_default()
}

/// A block of a text: its name, and the places of its two lines, from 0.
pub(crate) struct Block<'t> {
    pub(crate) name: &'t str,
    pub(crate) begins: usize,
    pub(crate) ends: usize,
}

/// The blocks of a text, in their order.
///
/// Each begin must have its own end. Otherwise the block would overwrite the text up to the next
/// end. For the same reason, a comment that looks like a marker must be one.
pub(crate) fn blocks<'t>(lines: &[&'t str]) -> Result<Vec<Block<'t>>, (usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, usize)> = None;
    for (at, line) in lines.iter().enumerate() {
        let line = line.trim();
        let begin = line.strip_prefix(BEGIN).and_then(|name| name.strip_suffix('>'));
        match (begin, line == END, open) {
            (Some(_), _, Some((name, begins))) => return Err((begins + 1, no_end(name))),
            (Some(name), _, None) => open = Some((name, at)),
            (None, true, Some((name, begins))) => {
                blocks.push(Block { name, begins, ends: at });
                open = None;
            }
            (None, true, None) => {
                return Err((at + 1, format!("`{END}` ends no generated block: delete it")));
            }
            (None, false, _) if is_almost_a_marker(line) => {
                let message = format!("`{line}` is not a marker: write `{BEGIN}NAME>` or `{END}`");
                return Err((at + 1, message));
            }
            (None, false, _) => {}
        }
    }
    match open {
        Some((name, begins)) => Err((begins + 1, no_end(name))),
        None => Ok(blocks),
    }
}

/// Whether a comment looks like a marker. The caller has already excluded the valid markers.
fn is_almost_a_marker(line: &str) -> bool {
    let plain: String = line.to_lowercase().split_whitespace().collect();
    plain.starts_with("#<generated") || plain.starts_with("#</generated")
}

fn no_end(name: &str) -> String {
    format!("the generated block `{name}` has no end: write `{END}` below it")
}
