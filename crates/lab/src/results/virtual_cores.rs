//! What only virtual cores have to tell: how a point compares with queueing theory, and how a
//! prediction compares with real threads.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The largest error of a good prediction, as a share.
pub const MAX_ERROR: f64 = 0.2;

/// The simulated rate of a point beside what queueing theory makes of the demands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Theory {
    /// As a share of the upper bound by operational analysis.
    pub of_bound: f64,
    /// As a share of the rate by mean value analysis.
    pub of_mean_value: f64,
}

/// A prediction beside what real threads measured. Rates are operations a second, all tasks
/// together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// The setting's name.
    pub setting: String,
    /// Number of threads.
    pub threads: u32,
    /// The part of the workload.
    pub part: String,
    /// The predicted rate.
    pub predicted: f64,
    /// The median of the measured rates.
    pub measured: f64,
    /// The smallest measured rate.
    pub least: f64,
    /// The largest measured rate.
    pub most: f64,
    /// Number of measurements.
    pub runs: u32,
}

impl Validation {
    /// How far the prediction is off, as a share of what was measured.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }

    /// Whether the prediction is off by more than [`MAX_ERROR`].
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.error().abs() > MAX_ERROR
    }
}

impl fmt::Display for Validation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "validation, {}, {} real threads, {}: predicted {:.0}, measured {:.0} a second ({:.0} \
             to {:.0} in {} runs), {:+.1} %",
            self.setting,
            self.threads,
            self.part,
            self.predicted,
            self.measured,
            self.least,
            self.most,
            self.runs,
            self.error() * 100.0
        )?;
        if self.is_off() {
            write!(formatter, ": NOT within {:.0} %", MAX_ERROR * 100.0)?;
        }
        Ok(())
    }
}
