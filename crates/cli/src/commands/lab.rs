//! `pext4 lab`: runs the workloads that measure scaling, on the library, on any mounted path, or on
//! several file systems in turn.

mod report;
mod run;

use anyhow::Result;
use clap::{Args, Subcommand};
use pext4_fs::options::{SWITCHES, Scaling};
use pext4_lab::workloads;
use serde_json::json;

use crate::output::print;

/// Measure how operations scale, here and on any file system
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The workloads and the switches
    List(ListArguments),
    Run(Box<run::Arguments>),
    Report(report::Arguments),
    /// One task of a run; a run starts it
    #[command(hide = true)]
    Worker,
}

#[derive(Args)]
struct ListArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
///
/// A run failed. It has no results then.
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Command::List(list) => {
            print(listed(list.json)?.trim_end())?;
            Ok(())
        }
        Command::Run(arguments) => run::run(arguments),
        Command::Report(arguments) => report::run(arguments),
        Command::Worker => pext4_lab::run::run_worker(),
    }
}

fn listed(as_json: bool) -> Result<String> {
    if as_json {
        let workloads = workloads::ALL.iter().map(|workload| {
            json!({
                "name": workload.name(),
                "source": workload.source(),
                "operation": workload.operation(),
                "parts": workload.parts(),
            })
        });
        let switches = SWITCHES.iter().map(
            |switch| json!({ "name": switch.name, "values": switch.values, "about": switch.about }),
        );
        let all = json!({
            "workloads": workloads.collect::<Vec<_>>(),
            "settings": Scaling::NAMED.map(|(name, _)| name),
            "switches": switches.collect::<Vec<_>>(),
        });
        return Ok(format!("{}\n", serde_json::to_string_pretty(&all)?));
    }
    let mut text = String::from("Workloads\n");
    for workload in workloads::ALL {
        text += &format!(
            "  {}\n      {}\n      {}\n",
            workload.name(),
            workload.operation(),
            workload.origin()
        );
    }
    text += "\nSettings: base, seeds, full, and with single switches: full,-try-lock\n";
    for switch in &SWITCHES {
        text += &format!(
            "  {:<17} {}\n      {}\n",
            switch.name, switch.values, switch.about
        );
    }
    Ok(text)
}
