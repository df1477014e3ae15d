//! A test of docs/learn: the commands of the lessons in a new workspace, as a reader types them.

use std::{fs, path::Path};

use ledgerline_testing::{Shell, blocks};

use super::{Watched, workspace::Workspace};

/// A reader in the workspace that the first lesson creates.
struct Reader {
    shop: Workspace,
    shell: Shell,
    stack: Option<Watched>,
    /// Whether the stack has not served the last edit yet.
    edited: bool,
}

impl Reader {
    /// Does all that a lesson asks for. The reader has stopped the stack of the lesson before this
    /// one.
    async fn work_through(&mut self, lesson: &str) {
        self.stack = None;
        let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/learn"));
        let page = fs::read_to_string(docs.join(lesson)).unwrap();
        for (language, text) in blocks(&page) {
            match language {
                "sh" => text.lines().for_each(|line| self.run(line)),
                "diff" => {
                    self.shop.apply_change(text);
                    self.edited = self.stack.is_some();
                }
                _ => {
                    if std::mem::take(&mut self.edited) {
                        self.stack.as_mut().unwrap().line("functions replaced");
                    }
                    self.shell.session(text).await;
                }
            }
        }
    }

    fn run(&mut self, line: &str) {
        if let Some(arguments) = line.strip_prefix("cargo run -p local -- ") {
            let arguments: Vec<_> = arguments.split(' ').collect();
            let stack = Watched::start(&self.shop, &arguments);
            self.shell.replace("localhost:3000", &*stack.url);
            self.shell.replace("--local ", format!("--local={} ", stack.aws));
            self.stack = Some(stack);
        } else if !["cargo xtask new workspace ../shop", "cd ../shop"].contains(&line) {
            let printed = self.shell.run(line);
            assert!(!line.contains(" show ") || printed.contains("Sealed books"), "{printed}");
        }
    }
}

#[tokio::test]
#[ignore = "it builds a workspace: cargo test -p ledgerline-tools --test starter lessons -- --ignored"]
async fn every_command_of_the_lessons_prints_the_text_of_the_lesson() {
    // The packages of the test of `--watch`, so that fewer are compiled.
    let shop = Workspace::new("try-watch");
    let mut shell = Shell::new(&shop.root);
    shell.replace("cargo ", format!("CARGO_BUILD_BUILD_DIR={} cargo ", shop.built.display()));
    let mut reader = Reader { shop, shell, stack: None, edited: false };
    reader.work_through("1-first-aggregate.md").await;
    reader.work_through("2-view-and-query.md").await;
    reader.work_through("4-archive.md").await;
    drop(reader.stack);
    fs::remove_dir_all(&reader.shop.root).unwrap();
}
