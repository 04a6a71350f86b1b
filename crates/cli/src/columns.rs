//! Text in columns.

use std::io::{self, Write};

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// To the left, as text.
    Left,
    /// To the right, as numbers.
    Right,
}

/// Writes rows with columns as wide as their widest cell and two blanks between them. The last cell
/// of a row is not padded.
///
/// # Errors
///
/// Errors of the writer.
pub fn write(to: &mut dyn Write, aligns: &[Align], rows: &[Vec<String>]) -> io::Result<()> {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..aligns.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let is_last = column + 1 == row.len();
            let gap = if is_last { "" } else { "  " };
            let width = widths.get(column).copied().unwrap_or(0);
            match aligns.get(column) {
                Some(Align::Right) => write!(to, "{cell:>width$}{gap}")?,
                _ if is_last => write!(to, "{cell}")?,
                _ => write!(to, "{cell:<width$}{gap}")?,
            }
        }
        writeln!(to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Align, write};

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows =
            [["a", "5", "first"], ["bcd", "1024", "x"]].map(|row| row.map(str::to_owned).to_vec());
        let mut text = Vec::new();
        write(&mut text, &[Align::Left, Align::Right, Align::Left], &rows).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "a       5  first\nbcd  1024  x\n"
        );
    }
}
