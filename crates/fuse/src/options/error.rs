//! Why an option is not accepted.

use pext4_fs::options::ScalingError;
use thiserror::Error;

use super::names;

/// An option that is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionError {
    /// There is no such option.
    #[error("option `{0}` is not known{hint}; `pext4 mount --help` names the options", hint = hint(.0))]
    Unknown(String),
    /// The options of an existing mount cannot be changed.
    #[error(
        "option `remount`: a mount keeps the options that it began with; unmount, and mount again \
         with others (`mount -i -o remount,ro` has the kernel refuse writes until then)"
    )]
    Remount,
    /// The option has no valid value.
    #[error("option `{option}` wants {wants}")]
    Value {
        /// The option as given.
        option: String,
        /// The valid values.
        wants: &'static str,
    },
    /// An option of `mount(8)` or of ext4 in Linux that is not obeyed here.
    #[error("option `{option}` is not supported: {why}")]
    Refused {
        /// The option as given.
        option: String,
        /// What holds instead.
        why: &'static str,
    },
    /// The value of `scaling=` is not valid.
    #[error("option `{option}`: {problem}")]
    Scaling {
        /// The option as given.
        option: String,
        /// What is wrong with it, and the valid values.
        problem: ScalingError,
    },
}

fn hint(option: &str) -> String {
    if option.starts_with(['-', '+']) {
        return format!("; in `scaling=` a switch follows a colon, as in scaling=full:{option}");
    }
    names::nearest(option).map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}
