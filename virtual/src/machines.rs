//! The machines that can be simulated, the cost of a transfer on each, and the sources of the
//! figures.
//!
//! Published figures are medians of the time for a line to go one way between two cores that
//! exchange it by compare-and-swap, as `core-to-core-latency` measures them
//! (<https://github.com/nviennot/core-to-core-latency>, its README unless said otherwise).

use anyhow::{Result, bail};
use pext4_sync::virtual_cores::Model;

use crate::hand_over::{measured_further, measured_transfer};
use crate::waiting::measured_waiting;

/// A machine with its name and its sources.
pub struct NamedModel {
    /// The name by which the user chose it.
    pub name: String,
    /// The source of the transfer costs.
    pub source: String,
    /// The source of the cost of lines that are requested together.
    pub further_source: &'static str,
    /// The machine.
    pub model: Model,
}

/// Picoseconds in a nanosecond.
const NANOSECOND: u64 = 1000;

/// The cost of each line more of several that are requested together, for published machines, for
/// which it is not published: the middle of what was measured between two processors where a
/// transfer took about as long as on these (51 to 90 ns).
const FURTHER: u64 = 13 * NANOSECOND;
const FURTHER_SOURCE: &str = "measured on a virtual machine with 16 processors (Intel Xeon)";

/// A published machine: transfer costs in nanoseconds within a cluster, across the socket, and to
/// another socket.
struct Preset {
    name: &'static str,
    source: &'static str,
    cluster: Extent,
    socket: Extent,
    near: u64,
    across: u64,
    far: u64,
}

/// How many processors a cluster or a socket has.
#[derive(Clone, Copy)]
enum Extent {
    All,
    /// Half of all, rounded up.
    Half,
    Exactly(usize),
}

impl Extent {
    fn of(self, processors: usize) -> usize {
        match self {
            Self::All => usize::MAX,
            Self::Half => processors.div_ceil(2),
            Self::Exactly(count) => count,
        }
    }
}

const PRESETS: [Preset; 4] = [
    Preset {
        name: "one-socket",
        source: "as many cores as asked for, each as far from each as on one Xeon Platinum 8375C: 51 ns",
        cluster: Extent::All,
        socket: Extent::All,
        near: 51,
        across: 51,
        far: 51,
    },
    Preset {
        name: "two-sockets",
        source: "the cores in two halves, as two Xeon Platinum 8375C: 51 ns in one, 108 ns between them",
        cluster: Extent::Half,
        socket: Extent::Half,
        near: 51,
        across: 51,
        far: 108,
    },
    Preset {
        name: "kunpeng-920",
        source: "sockets of 64 cores as the Kunpeng 920-6426: 72 ns; between sockets nothing is \
                 published, so 202 ns, 2.8 times as much, as on two Xeon Gold 6242",
        cluster: Extent::Exactly(64),
        socket: Extent::Exactly(64),
        near: 72,
        across: 72,
        far: 202,
    },
    Preset {
        name: "epyc-9654",
        source: "sockets of 96 cores in clusters of 8, with the figures of two EPYC 9274F of the \
                 same generation (issue 132 there): 22 ns, 100 ns, 196 ns",
        cluster: Extent::Exactly(8),
        socket: Extent::Exactly(96),
        near: 22,
        across: 100,
        far: 196,
    },
];

/// The machine `name` with `processors` processors. `here` takes the transfer cost of this machine;
/// a number is the cost of every transfer in nanoseconds.
///
/// # Errors
///
/// If there is no machine of that name (the message lists the names), or the measurement of `here`
/// fails.
pub fn find(name: &str, processors: usize) -> Result<NamedModel> {
    let (model, source, further_source) = match PRESETS.iter().find(|preset| preset.name == name) {
        Some(preset) => {
            let (model, source) = preset.model(processors);
            (model, source, FURTHER_SOURCE)
        }
        None => uniform(name, processors)?,
    };
    Ok(NamedModel {
        name: name.to_owned(),
        source,
        further_source,
        model: Model {
            waiting: measured_waiting(),
            ..model
        },
    })
}

impl Preset {
    /// The machine with `processors` processors and the source of its figures.
    fn model(&self, processors: usize) -> (Model, String) {
        let model = Model {
            cluster: self.cluster.of(processors),
            socket: self.socket.of(processors),
            near: self.near * NANOSECOND,
            across: self.across * NANOSECOND,
            far: self.far * NANOSECOND,
            further: FURTHER,
            ..Model::uniform(processors, self.near * NANOSECOND)
        };
        let source: Vec<&str> = self.source.split_whitespace().collect();
        (model, source.join(" "))
    }
}

/// A machine whose transfers all cost the same: as measured for `here`, or a number of nanoseconds.
fn uniform(name: &str, processors: usize) -> Result<(Model, String, &'static str)> {
    let (transfer, source) = if name == "here" {
        let transfer = measured_transfer()?;
        (
            transfer,
            format!(
                "measured on this machine: {:.0} ns",
                transfer as f64 / 1000.0
            ),
        )
    } else if let Ok(nanoseconds) = name.parse::<u64>() {
        (
            nanoseconds * NANOSECOND,
            format!("as given: {nanoseconds} ns"),
        )
    } else {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        bail!(
            "there is no machine `{name}`; give `here`, one of {}, or a number of nanoseconds",
            names.join(", ")
        );
    };
    let measured = measured_further().ok();
    let further_source = match measured {
        Some(_) => "measured on this machine",
        None => "a whole transfer: one processor says nothing about it",
    };
    let model = Model {
        further: measured.unwrap_or(transfer),
        ..Model::uniform(processors, transfer)
    };
    Ok((model, source, further_source))
}
