//! `pext4 quota`: shows what users, groups and projects use of an image that counts it.

use std::io::Write;

use anyhow::{Result, bail};
use clap::Args;
use pext4_fs::{OwnerKind, Usage};
use serde::Serialize;

use super::record;
use crate::columns::{self, Align};
use crate::device::ImageArgument;
use crate::names::ImageName;
use crate::viewer::Viewer;
use crate::{output, size};

/// Show what users, groups and projects use of an image, and their limits
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    image: ImageArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The usage of each kind of owner that is counted.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    image: ImageName,
    #[serde(skip_serializing_if = "Option::is_none")]
    users: Option<Vec<Account>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<Account>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    projects: Option<Vec<Account>>,
}

/// What one owner uses, and its limits; 0 is none.
#[derive(Serialize)]
struct Account {
    id: u32,
    space: u64,
    soft_space: u64,
    hard_space: u64,
    inodes: u64,
    soft_inodes: u64,
    hard_inodes: u64,
}

/// Runs the command.
///
/// # Errors
///
/// The image cannot be read, or counts no usage.
pub fn run(arguments: &Arguments) -> Result<()> {
    let viewer = Viewer::open(&arguments.image)?;
    let accounts = |owner| -> Result<Option<Vec<Account>>> {
        let usage = viewer.volume().usage(owner)?;
        Ok(usage.map(|usage| usage.iter().map(account).collect()))
    };
    let report = Report {
        image: ImageName::of(&arguments.image.file),
        users: accounts(OwnerKind::User)?,
        groups: accounts(OwnerKind::Group)?,
        projects: accounts(OwnerKind::Project)?,
    };
    let kinds = [
        (OwnerKind::User, &report.users),
        (OwnerKind::Group, &report.groups),
        (OwnerKind::Project, &report.projects),
    ];
    if kinds.iter().all(|(_, accounts)| accounts.is_none()) {
        bail!(
            "the image does not count what its users and groups use: it lacks the feature quota \
             (`pext4 mkfs -O quota`, or `tune2fs -O quota` for an image that is there)"
        );
    }
    let mut output = output::buffered();
    if arguments.json {
        record::write(&mut output, &report)?;
    } else {
        let all = kinds.into_iter().flat_map(|(owner, accounts)| {
            let accounts = accounts.iter().flatten();
            accounts.map(move |account| row(owner, account))
        });
        let rows: Vec<_> = std::iter::once(titles()).chain(all).collect();
        let mut aligns = [Align::Right; 8];
        aligns[0] = Align::Left;
        columns::write(&mut output, &aligns, &rows)?;
    }
    output.flush()?;
    Ok(())
}

fn account(usage: &Usage) -> Account {
    Account {
        id: usage.id,
        space: usage.space,
        soft_space: usage.limits.soft_space,
        hard_space: usage.limits.hard_space,
        inodes: usage.inodes,
        soft_inodes: usage.limits.soft_inodes,
        hard_inodes: usage.limits.hard_inodes,
    }
}

fn titles() -> Vec<String> {
    let titles = [
        "owner",
        "id",
        "space",
        "soft limit",
        "hard limit",
        "inodes",
        "soft limit",
        "hard limit",
    ];
    titles.map(str::to_owned).to_vec()
}

fn row(owner: OwnerKind, account: &Account) -> Vec<String> {
    let limit = |limit: u64, show: fn(u64) -> String| match limit {
        0 => "-".to_owned(),
        limit => show(limit),
    };
    let count = |number: u64| number.to_string();
    vec![
        owner.name().to_owned(),
        account.id.to_string(),
        size::show(account.space),
        limit(account.soft_space, size::show),
        limit(account.hard_space, size::show),
        account.inodes.to_string(),
        limit(account.soft_inodes, count),
        limit(account.hard_inodes, count),
    ]
}
