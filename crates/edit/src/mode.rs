//! Permissions as `chmod` takes them: octal, or symbolic like `u+x,go-w`, `g=u` and `=755`.
//!
//! As with coreutils' `chmod`, a directory keeps its set-user-ID and set-group-ID bits unless the
//! change names them: by `s`, by an octal digit that sets them, by an octal number of five digits
//! or more (`00755`), or by one behind an operator (`=755`). A change without classes (`+w`, `=rw`)
//! applies to all of them, and as under the umask 022: not to the write permission of group and
//! others. It does so whatever the caller's umask is, unlike coreutils, so that an edit gives the
//! same image for every caller.

use std::str::FromStr;

use pext4_ondisk::directory::{SET_GROUP_ID, SET_USER_ID};
use thiserror::Error;

/// The bits that letters without classes leave as they are.
const UMASK: u16 = 0o022;

/// The bits that a directory keeps unless they are named.
const KEPT: u16 = SET_USER_ID | SET_GROUP_ID;

/// A change of permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange {
    clauses: Vec<Clause>,
}

/// A text is no [`ModeChange`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is no mode: it is octal (0755, =755) or like u+x,go-w,g=u")]
pub struct InvalidMode {
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clause {
    operation: Operation,
    /// The bits of the selected classes; others do not change.
    scope: u16,
    value: Value,
    /// The bits that are taken out of the value.
    masked: u16,
    /// The set-ID bits that are named, which therefore change on directories too.
    named: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// Bits that are always set, and bits that are set only for directories and for files that
    /// somebody may execute (`X`).
    Bits { always: u16, conditional: u16 },
    /// The present permissions of the class whose bits are shifted left by this number.
    Class(u16),
}

impl ModeChange {
    /// Exactly these bits.
    #[must_use]
    pub fn exactly(permissions: u16) -> Self {
        Self::octal(Operation::Set, permissions & 0o7777, 0o7777)
    }

    fn octal(operation: Operation, bits: u16, named: u16) -> Self {
        let clause = Clause {
            operation,
            scope: 0o7777,
            value: Value::Bits {
                always: bits,
                conditional: 0,
            },
            masked: 0,
            named,
        };
        Self {
            clauses: vec![clause],
        }
    }

    /// The permissions after the change.
    #[must_use]
    pub fn apply(&self, permissions: u16, is_directory: bool) -> u16 {
        let change = |before, clause: &Clause| clause.apply(before, is_directory);
        self.clauses.iter().fold(permissions, change)
    }
}

impl Clause {
    fn apply(&self, before: u16, is_directory: bool) -> u16 {
        let bits = match self.value {
            Value::Class(shift) => (before >> shift & 7) * 0o111,
            Value::Bits {
                always,
                conditional,
            } if is_directory || before & 0o111 != 0 => always | conditional,
            Value::Bits { always, .. } => always,
        };
        let bits = bits & !self.masked;
        let kept = if is_directory { KEPT & !self.named } else { 0 };
        let scope = self.scope & !kept;
        match self.operation {
            Operation::Add => before | bits & scope,
            Operation::Remove => before & !(bits & scope),
            Operation::Set => before & !scope | bits & scope,
        }
    }
}

impl FromStr for ModeChange {
    type Err = InvalidMode;

    fn from_str(text: &str) -> Result<Self, InvalidMode> {
        let problem = || InvalidMode {
            text: text.to_owned(),
        };
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let bits = octal(text).ok_or_else(problem)?;
            let named = if text.len() > 4 { 0o7777 } else { bits };
            return Ok(Self::octal(Operation::Set, bits, named));
        }
        let mut clauses = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut clauses).ok_or_else(problem)?;
        }
        Ok(Self { clauses })
    }
}

fn octal(digits: &str) -> Option<u16> {
    let is_octal = digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let bits = u16::from_str_radix(digits, 8).ok();
    bits.filter(|bits| is_octal && *bits <= 0o7777)
}

/// One class list with its operations: `ug+rw-x`.
fn parse_clause(text: &str, clauses: &mut Vec<Clause>) -> Option<()> {
    let start = text.find(['+', '-', '='])?;
    let (who, mut rest) = text.split_at(start);
    let mut scope = if who.is_empty() { 0o7777 } else { 0 };
    for letter in who.chars() {
        scope |= match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    while let Some(sign) = rest.chars().next() {
        let operation = match sign {
            '+' => Operation::Add,
            '-' => Operation::Remove,
            '=' => Operation::Set,
            _ => return None,
        };
        let end = rest[1..]
            .find(['+', '-', '='])
            .map_or(rest.len(), |at| at + 1);
        let text = &rest[1..end];
        let (value, named) = parse_value(text, who.is_empty())?;
        // An octal number says everything, also behind an operator.
        let is_octal = text.starts_with(|first: char| first.is_ascii_digit());
        let masked = if who.is_empty() && !is_octal {
            UMASK
        } else {
            0
        };
        clauses.push(Clause {
            operation,
            scope,
            value,
            masked,
            named,
        });
        rest = &rest[end..];
    }
    Some(())
}

/// Parses the text behind an operator. Also returns the set-ID bits that it names.
fn parse_value(text: &str, may_be_octal: bool) -> Option<(Value, u16)> {
    let (mut always, mut conditional) = (0, 0);
    match text {
        "u" => return Some((Value::Class(6), 0)),
        "g" => return Some((Value::Class(3), 0)),
        "o" => return Some((Value::Class(0), 0)),
        digits if digits.starts_with(|first: char| first.is_ascii_digit()) => {
            let bits = octal(digits).filter(|_| may_be_octal)?;
            let value = Value::Bits {
                always: bits,
                conditional,
            };
            return Some((value, 0o7777));
        }
        _ => {}
    }
    for letter in text.chars() {
        match letter {
            'r' => always |= 0o444,
            'w' => always |= 0o222,
            'x' => always |= 0o111,
            'X' => conditional |= 0o111,
            's' => always |= 0o6000,
            't' => always |= 0o1000,
            _ => return None,
        }
    }
    let value = Value::Bits {
        always,
        conditional,
    };
    Some((value, always & KEPT))
}

#[cfg(test)]
mod tests {
    use super::ModeChange;
    use crate::error::EditError;

    fn after(text: &str, before: u16, is_directory: bool) -> u16 {
        let change: ModeChange = text.parse().expect(text);
        change.apply(before, is_directory)
    }

    #[test]
    fn octal_says_everything() {
        assert_eq!(after("4755", 0o1644, false), 0o4755);
        assert_eq!(after("0", 0o7777, false), 0);
    }

    #[test]
    fn symbols_change_what_they_name() {
        assert_eq!(after("u+x,go-w", 0o666, false), 0o744);
        assert_eq!(after("a=r", 0o777, false), 0o444);
        assert_eq!(after("+x", 0o644, false), 0o755);
    }

    #[test]
    fn a_large_x_is_for_what_is_executable() {
        assert_eq!(after("a+X", 0o644, false), 0o644);
        assert_eq!(after("a+X", 0o644, true), 0o755);
        assert_eq!(after("go+X", 0o744, false), 0o755);
    }

    #[test]
    fn special_bits_have_letters() {
        assert_eq!(after("u+s,g+s,+t", 0o755, false), 0o7755);
        assert_eq!(after("ug-s", 0o6755, false), 0o755);
        assert_eq!(after("u=rwx", 0o4644, false), 0o744);
    }

    /// Each with a mode before, and after for a file and a directory, as chmod of coreutils 9.1
    /// makes them under the umask 022.
    #[test]
    fn modes_are_what_coreutils_makes_them() {
        for (text, before, file, directory) in [
            ("755", 0o6711, 0o755, 0o6755),
            ("00755", 0o6711, 0o755, 0o755),
            ("=755", 0o6711, 0o755, 0o755),
            ("==755", 0o700, 0o755, 0o755),
            ("=4755", 0o2711, 0o4755, 0o4755),
            ("+4000", 0o711, 0o4711, 0o4711),
            ("-6000", 0o6755, 0o755, 0o755),
            ("2755", 0o4711, 0o2755, 0o6755),
            ("u=st", 0o755, 0o4055, 0o4055),
            ("u+t", 0o755, 0o755, 0o755),
            ("g=u", 0o741, 0o771, 0o771),
            ("o=g", 0o741, 0o744, 0o744),
            ("u=g", 0o4750, 0o550, 0o4550),
            ("u=u", 0o4711, 0o711, 0o4711),
            ("g-u", 0o774, 0o704, 0o704),
            ("o+u", 0o700, 0o707, 0o707),
            ("g=u-w", 0o740, 0o750, 0o750),
            ("u=rwx", 0o7644, 0o3744, 0o7744),
            ("g=rx", 0o2755, 0o755, 0o2755),
            ("g=s", 0o755, 0o2705, 0o2705),
            ("a=rx", 0o6755, 0o555, 0o6555),
            ("=t", 0o6755, 0o1000, 0o7000),
            ("o=t", 0o755, 0o1750, 0o1750),
            ("ug-s", 0o6755, 0o755, 0o755),
            ("u=rwx,g=s", 0o4755, 0o2705, 0o6705),
            ("=755,u+w", 0o500, 0o755, 0o755),
            ("u+rwx-w=x", 0o200, 0o100, 0o100),
            ("=", 0o6755, 0, 0o6000),
            ("u=", 0o6755, 0o2055, 0o6055),
            ("+w", 0o644, 0o644, 0o644),
            ("+w", 0, 0o200, 0o200),
            ("-w", 0o777, 0o577, 0o577),
            ("=rw", 0o777, 0o644, 0o644),
            ("=rw", 0o6711, 0o644, 0o6644),
            ("+rwx", 0o6711, 0o6755, 0o6755),
            ("=X", 0o644, 0, 0o111),
            ("=u", 0o777, 0o755, 0o755),
            ("-u", 0o777, 0o022, 0o022),
            ("+rwxst", 0o741, 0o7755, 0o7755),
            ("=r+w", 0o6711, 0o644, 0o6644),
            ("+w,g+w", 0o644, 0o664, 0o664),
            ("=777", 0o644, 0o777, 0o777),
            ("+222", 0o644, 0o666, 0o666),
            ("a=rw", 0o777, 0o666, 0o666),
        ] {
            assert_eq!(after(text, before, false), file, "{text} of a file");
            assert_eq!(
                after(text, before, true),
                directory,
                "{text} of a directory"
            );
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in [
            "", "8", "77777", "u", "u*x", "z+x", "u+q", "+x,", "u=gx", "u+4000", "=8", "7+7",
        ] {
            let error = text.parse::<ModeChange>().expect_err(text);
            assert_eq!(
                EditError::from(error).to_string(),
                format!("`{text}` is no mode: it is octal (0755, =755) or like u+x,go-w,g=u")
            );
        }
    }
}
