//! What stands under the title of a figure: the machine and the day of each of its runs, and the
//! parameters in which they differ.

use crate::results::Results;
use crate::workloads;

/// The parameters with their names in the results of measured and of virtual runs. The workload's
/// own are shown if they shape its work.
const PARAMETERS: [(&str, &str); 5] = [
    ("files", "files"),
    ("file size", "file size"),
    ("values", "values"),
    ("users", "users"),
    ("commit", "commits every"),
];

/// The lines for a measured run, a virtual one, or both.
pub(super) fn caption(measured: Option<&Results>, predicted: Option<&Results>) -> Vec<String> {
    let machine = |how, results: &Results| format!("{how} {}", results.machine.line());
    let mut lines = Vec::new();
    lines.extend(measured.map(|results| machine("measured on", results)));
    lines.extend(predicted.map(|results| machine("virtual cores calibrated on", results)));
    if let Some((measured, predicted)) = measured.zip(predicted) {
        let found = PARAMETERS
            .iter()
            .filter_map(|(name, virtual_name)| difference(measured, predicted, name, virtual_name));
        let found: Vec<String> = found.collect();
        lines.extend((!found.is_empty()).then(|| found.join("; ")));
    }
    lines
}

/// `values: 100 measured, 1000 virtual`
fn difference(
    measured: &Results,
    predicted: &Results,
    name: &str,
    virtual_name: &str,
) -> Option<String> {
    let is_own = name != virtual_name || {
        let workload = workloads::find(&measured.workload).ok()?;
        workload.parameters().contains(&name)
    };
    let (one, other) = (setting(measured, name)?, setting(predicted, virtual_name)?);
    (is_own && one != other).then(|| format!("{virtual_name}: {one} measured, {other} virtual"))
}

fn setting<'a>(results: &'a Results, name: &str) -> Option<&'a str> {
    let mut settings = results.settings.iter();
    let found = settings.find(|(found, _)| found == name)?;
    Some(&found.1)
}

#[cfg(test)]
mod tests {
    use super::caption;
    use crate::results::samples::results;

    #[test]
    fn parameters_that_differ_are_named_if_they_shape_the_work() {
        let of = |workload: &str, settings: &[(&str, &str)]| {
            let mut results = results(Vec::new());
            results.workload = workload.to_owned();
            let owned = settings.iter();
            let owned = owned.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            results.settings = owned.collect();
            results
        };
        let measured = [("files", "1000"), ("values", "100"), ("commit", "5 s")];
        let predicted = [
            ("values", "1000"),
            ("files", "400"),
            ("commits every", "25 ms"),
        ];
        let lines = |workload| {
            caption(
                Some(&of(workload, &measured)),
                Some(&of(workload, &predicted)),
            )
        };
        let commits = "commits every: 5 s measured, 25 ms virtual";
        let files = format!("files: 1000 measured, 400 virtual; {commits}");
        let values = format!("values: 100 measured, 1000 virtual; {commits}");
        assert_eq!(lines("mdtest")[2..], [files]);
        assert_eq!(lines("xattr-share")[2..], [values]);
        assert_eq!(lines("stress-orphan")[2..], [commits]);
        let alone = of("mdtest", &measured);
        assert_eq!(caption(Some(&alone), None).len(), 1);
    }
}
