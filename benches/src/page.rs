//! Writes docs/benchmarks.md and its picture.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
use plotters::prelude::*;

use crate::{
    LENGTHS,
    meter::Counts,
    scenarios::{Length, Measured},
    work::Instructions,
};

const PICTURE: &str = "benchmarks.svg";

/// Writes the page and its picture.
pub fn write(docs: &Path, measured: &[Measured], instructions: &Instructions) -> Result<()> {
    fs::write(docs.join(PICTURE), picture(measured)?)?;
    fs::write(docs.join("benchmarks.md"), page(measured, instructions)?)?;
    Ok(())
}

fn page(measured: &[Measured], instructions: &Instructions) -> Result<String> {
    let mut page = String::from(include_str!("page.md"));
    writeln!(page, "\n## Versions\n\n| package | version |\n|---|---|")?;
    for package in ["dynamo-es", "cqrs-es", "event-store-adapter-rs", "aws-sdk-dynamodb", "dynoxide-rs"] {
        writeln!(page, "| {package} | {} |", version(package)?)?;
    }

    for (title, which) in [
        (
            "A command of an instance that knows the account",
            (|length| length.warm) as fn(&Length) -> Option<Counts>,
        ),
        ("A command of an instance that has seen nothing", |length| length.cold),
    ] {
        writeln!(
            page,
            "\n## {title}\n\n| | commits | calls | read units | write units | bytes | $ per million |"
        )?;
        writeln!(page, "|---|---|---|---|---|---|---|")?;
        for peer in measured {
            for (length, name) in
                peer.lengths.iter().zip(std::iter::once(peer.name.as_str()).chain(std::iter::repeat("")))
            {
                writeln!(page, "| {name} | {} | {} |", grouped(length.commits), cells(which(length)))?;
            }
        }
    }

    writeln!(
        page,
        "\n## With an Idempotency-Key\n\n| | calls | read units | write units | bytes | $ per million |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|")?;
    for peer in measured {
        let cells = if peer.keyed.is_some() { cells(peer.keyed) } else { "it has none | | | | ".into() };
        writeln!(page, "| {} | {cells} |", peer.name)?;
    }

    writeln!(
        page,
        "\n## Eight writers of one account\n\n| | calls | read units | write units | bytes | $ per million |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|")?;
    for peer in measured {
        writeln!(page, "| {} | {} |", peer.name, cells(Some(peer.contended.0)))?;
    }

    writeln!(page, "\n## Whether the account was right\n")?;
    let lengths: Vec<_> = LENGTHS.iter().map(|commits| format!("at {}", grouped(*commits))).collect();
    writeln!(page, "| | {} | eight writers | a request that was sent twice |", lengths.join(" | "))?;
    writeln!(page, "|---|{}---|---|", "---|".repeat(lengths.len()))?;
    for peer in measured {
        let said = |right: bool| if right { "right" } else { "**wrong**" };
        let at: Vec<_> = peer.lengths.iter().map(|length| said(length.right)).collect();
        let twice = match peer.sent_twice {
            1 => "booked once".to_owned(),
            times => format!("**booked {times} times**"),
        };
        writeln!(page, "| {} | {} | {} | {twice} |", peer.name, at.join(" | "), said(peer.contended.1))?;
    }

    writeln!(page, "\n## Instructions\n\n| | Ledgerline | cqrs-es |\n|---|---|---|")?;
    for (what, counted) in instructions {
        let [ours, theirs] =
            counted.map_or(["not counted".into(), "not counted".into()], |both| both.map(grouped));
        writeln!(page, "| {what} | {ours} | {theirs} |")?;
    }
    Ok(page)
}

fn cells(counts: Option<Counts>) -> String {
    counts.map_or_else(
        || "it fails | | | | ".into(),
        |counts| {
            format!(
                "{:.2} | {:.2} | {:.2} | {} | {:.2}",
                counts.calls,
                counts.reads,
                counts.writes,
                grouped(counts.bytes.round()),
                counts.dollars_per_million()
            )
        },
    )
}

/// The number with a comma between thousands: 1,234,567.
fn grouped(number: impl ToString) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// The measured version of a package, from the lock file.
fn version(package: &str) -> Result<String> {
    let lock: toml::Table = include_str!("../Cargo.lock").parse()?;
    let packages = lock["package"].as_array().context("the lock file has no packages")?;
    let found = packages.iter().find(|found| found["name"].as_str() == Some(package));
    let version = found.and_then(|found| found["version"].as_str());
    Ok(version.with_context(|| format!("{package} is not in the lock file"))?.to_owned())
}

/// The picture: dollars per million cold commands by the length of the stream, on logarithmic axes.
fn picture(measured: &[Measured]) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (900, 540)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption("Dollars per million commands, without what the instance knew", ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d((10_f64..25_000_f64).log_scale(), (0.5_f64..100_f64).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("commits of the account")
            .y_desc("$ per million")
            .x_label_formatter(&|commits| grouped(commits.round()))
            .draw()?;
        for (place, peer) in measured.iter().enumerate() {
            let color = Palette99::pick(place).to_rgba();
            #[expect(clippy::cast_precision_loss, reason = "streams are shorter than 2^53")]
            let point = |length: &Length| Some((length.commits as f64, length.cold?.dollars_per_million()));
            let points: Vec<_> = peer.lengths.iter().filter_map(point).collect();
            chart
                .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)).point_size(3))?
                .label(&peer.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}
