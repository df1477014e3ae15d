//! The stored form of commits, on which no result of a proof may depend.

use std::cell::Cell;

/// The stored form of commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Each commit is an item.
    Items,
    /// Each commit has a body object.
    Objects,
    /// Each commit with an even version is archived before its writer has the answer.
    Stubs,
}

impl Form {
    pub(crate) const ALL: [Self; 3] = [Self::Items, Self::Objects, Self::Stubs];
}

thread_local! {
    static FORM: Cell<Form> = const { Cell::new(Form::Items) };
}

/// Returns the form in which the worlds of this thread store commits.
pub(crate) fn form() -> Form {
    FORM.get()
}

/// Makes the worlds of this thread store commits in this form.
pub(crate) fn use_form(form: Form) {
    FORM.set(form);
}
