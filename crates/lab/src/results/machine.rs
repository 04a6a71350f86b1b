//! The machine of a run: processor, memory, kernel, date and commit.

use std::time::Duration;

use pext4_sync::time;
use serde::{Deserialize, Serialize};

/// The machine, the date and the commit of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's model.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: u32,
    /// Whether it is a virtual machine, as far as it can be detected.
    pub is_virtual: bool,
    /// Mebibytes of memory.
    pub memory: u64,
    /// The kernel's version.
    pub kernel: String,
    /// Day of the run, `2026-11-21`.
    pub date: String,
    /// Commit of the source, with `+` if it was changed, or `unknown`.
    pub commit: String,
    /// Whether the program was built with optimisations.
    pub optimised: bool,
}

impl Machine {
    /// This machine, today.
    #[must_use]
    pub fn here() -> Self {
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let flags = field(&processors, "flags").unwrap_or_default();
        Self {
            processor: field(&processors, "model name")
                .or_else(|| field(&processors, "CPU part"))
                .unwrap_or_else(|| "unknown".to_owned()),
            processors: std::thread::available_parallelism()
                .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
            is_virtual: flags.split(' ').any(|flag| flag == "hypervisor"),
            memory: kibibytes(&memory, "MemTotal") / 1024,
            kernel: version(&rustix::system::uname().release().to_string_lossy()).to_owned(),
            date: day(time::since_epoch()),
            commit: env!("PEXT4_COMMIT").to_owned(),
            optimised: !cfg!(debug_assertions),
        }
    }

    /// A warning for the reader of rates, if other work runs on the machine now.
    #[must_use]
    pub fn busy(&self) -> Option<String> {
        let told = std::fs::read_to_string("/proc/loadavg").ok()?;
        let load: f64 = told.split(' ').next()?.parse().ok()?;
        (load > 0.5 * f64::from(self.processors)).then(|| {
            format!(
                "the machine was busy with other things (load {load:.1} before the run): rates and \
                 fairness say little, time on a processor says more"
            )
        })
    }

    /// What it is, without when: `2 processors (virtual machine), AMD EPYC, 24 GiB, Linux 6.18.2`.
    #[must_use]
    pub fn name(&self) -> String {
        let kind = if self.is_virtual {
            " (virtual machine)"
        } else {
            ""
        };
        format!(
            "{} processors{kind}, {}, {} GiB, Linux {}",
            self.processors,
            self.processor,
            (self.memory + 512) / 1024,
            self.kernel,
        )
    }

    /// In one line: what it is, the day, the commit.
    #[must_use]
    pub fn line(&self) -> String {
        let debug = if self.optimised {
            ""
        } else {
            ", built WITHOUT optimisations"
        };
        format!(
            "{}, {}, commit {}{debug}",
            self.name(),
            self.date,
            self.commit
        )
    }
}

/// The kernel's version in a release; what distributors append says nothing to others.
fn version(release: &str) -> &str {
    release.split('-').next().unwrap_or_default()
}

/// Bytes of memory that are available without swapping; `None` if the system does not tell.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available = kibibytes(&memory, "MemAvailable");
    (available > 0).then_some(available * 1024)
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn kibibytes(text: &str, name: &str) -> u64 {
    let value = field(text, name).unwrap_or_default();
    let number = value.trim_end_matches("kB").trim();
    number.parse().unwrap_or(0)
}

/// The day in UTC (the civil calendar from a count of days, by eras of 400 years).
fn day(since_epoch: Duration) -> String {
    let days = since_epoch.as_secs() / 86400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::{day, field, kibibytes, version};
    use std::time::Duration;

    #[test]
    fn the_kernel_is_named_by_its_version() {
        for (release, named) in [("6.18.44-vendor-7", "6.18.44"), ("6.1", "6.1")] {
            assert_eq!(version(release), named);
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let days = |count: u64| day(Duration::from_secs(count * 86400 + 7));
        assert_eq!(days(0), "1970-01-01");
        assert_eq!(days(11_016), "2000-02-29");
        assert_eq!(days(11_017), "2000-03-01");
        assert_eq!(days(20_778), "2026-11-21");
    }

    #[test]
    fn fields_of_the_kernels_tables() {
        let table = "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nMemTotal:  2048 kB\n";
        assert_eq!(
            field(table, "model name").as_deref(),
            Some("Some CPU @ 2.0GHz")
        );
        assert_eq!(field(table, "bogomips"), None);
        assert_eq!(kibibytes(table, "MemTotal"), 2048);
    }
}
