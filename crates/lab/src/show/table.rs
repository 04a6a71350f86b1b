//! Text in columns.

/// Aligns rows; every column is as wide as its widest cell, with two blanks between columns. The
/// first column is aligned left, the others right.
#[must_use]
pub fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            if column > 0 {
                line.push_str("  ");
            }
            line.push_str(&match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::align;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["a", "5", "first"],
            vec!["bcd", "1024"],
            vec!["", "1", "x"],
        ]
        .map(|row| row.into_iter().map(str::to_owned).collect());
        assert_eq!(
            align(&rows),
            "a       5  first\nbcd  1024\n        1      x\n"
        );
    }
}
