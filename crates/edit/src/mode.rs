//! Permissions as `chmod` takes them: octal, or symbolic like `u+x,go-w`.

use std::str::FromStr;

/// How permissions change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange {
    clauses: Vec<Clause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clause {
    operation: Operation,
    /// The bits, of all classes that are meant.
    bits: u16,
    /// The execute bits, where directories or files that somebody may execute get them (`X`).
    conditional: u16,
    /// The bits that `=` replaces.
    scope: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Add,
    Remove,
    Set,
}

impl ModeChange {
    /// Exactly these bits.
    #[must_use]
    pub fn exactly(permissions: u16) -> Self {
        let clause = Clause {
            operation: Operation::Set,
            bits: permissions & 0o7777,
            conditional: 0,
            scope: 0o7777,
        };
        Self {
            clauses: vec![clause],
        }
    }

    /// The permissions after the change.
    #[must_use]
    pub fn apply(&self, permissions: u16, is_directory: bool) -> u16 {
        self.clauses.iter().fold(permissions, |before, clause| {
            let executable = is_directory || before & 0o111 != 0;
            let conditional = if executable { clause.conditional } else { 0 };
            let bits = clause.bits | conditional;
            match clause.operation {
                Operation::Add => before | bits,
                Operation::Remove => before & !bits,
                Operation::Set => (before & !clause.scope) | bits,
            }
        })
    }
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = || format!("`{text}` is no mode: it is octal (0755) or like u+x,go-w");
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let bits = u16::from_str_radix(text, 8).map_err(|_| problem())?;
            if bits > 0o7777 {
                return Err(problem());
            }
            return Ok(Self::exactly(bits));
        }
        let mut clauses = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut clauses).ok_or_else(problem)?;
        }
        Ok(Self { clauses })
    }
}

/// One class list with its operations: `ug+rw-x`.
fn parse_clause(text: &str, clauses: &mut Vec<Clause>) -> Option<()> {
    let start = text.find(['+', '-', '='])?;
    let (who, mut rest) = text.split_at(start);
    let mut classes = 0;
    for letter in who.chars() {
        classes |= match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    if who.is_empty() {
        classes = 0o7777;
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
        let mut clause = Clause {
            operation,
            bits: 0,
            conditional: 0,
            scope: classes & !0o1000,
        };
        for letter in rest[1..end].chars() {
            match letter {
                'r' => clause.bits |= 0o444 & classes,
                'w' => clause.bits |= 0o222 & classes,
                'x' => clause.bits |= 0o111 & classes,
                'X' => clause.conditional |= 0o111 & classes,
                's' => clause.bits |= 0o6000 & classes,
                't' => clause.bits |= 0o1000,
                _ => return None,
            }
        }
        clauses.push(clause);
        rest = &rest[end..];
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::ModeChange;

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

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in ["", "8", "77777", "u", "u*x", "z+x", "u+q", "+x,"] {
            assert!(text.parse::<ModeChange>().is_err(), "{text}");
        }
    }
}
