//! Scalable vector graphics, as far as figures need them: lines, marks, text.
//!
//! Numbers have one digit after the decimal point, so that the same results give the same bytes.

use std::fmt::Write;

/// A drawing of a fixed size.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// The position of text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stroke {
    /// A colour in CSS notation.
    pub colour: &'static str,
    pub width: f64,
    /// Lengths of dashes and gaps; empty for a solid line.
    pub dash: &'static str,
}

/// The shape of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
    Dot,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            body: String::new(),
        }
    }

    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        self.body.write_fmt(line).expect("a string has room");
        self.body.push('\n');
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: Stroke) {
        let style = style(stroke);
        self.put(format_args!(
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" {style}/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    /// Adds a line through points.
    pub fn path(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        let list: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let (list, style) = (list.join(" "), style(stroke));
        self.put(format_args!(
            r#"<polyline points="{list}" fill="none" stroke-linejoin="round" {style}/>"#
        ));
    }

    /// Adds text; `look` is the size in points and the colour.
    pub fn text(&mut self, at: (f64, f64), words: &str, look: (f64, &str), anchor: Anchor) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (size, colour) = look;
        self.put(format_args!(
            r#"<text x="{:.1}" y="{:.1}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{}</text>"#,
            at.0,
            at.1,
            escaped(words)
        ));
    }

    /// Adds a mark at a point; a hollow one is filled with the background colour.
    pub fn mark(&mut self, at: (f64, f64), mark: Mark, colour: &str, hollow: bool) {
        let fill = if hollow { GROUND } else { colour };
        let (x, y) = at;
        let look = format!(r#"fill="{fill}" stroke="{colour}" stroke-width="1.4""#);
        match mark {
            Mark::Circle => self.put(format_args!(
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.6" {look}/>"#
            )),
            Mark::Dot => self.put(format_args!(
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.2" {look}/>"#
            )),
            Mark::Square => self.polygon(
                at,
                &[(-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)],
                &look,
            ),
            Mark::Triangle => self.polygon(at, &[(0.0, -4.4), (4.0, 2.9), (-4.0, 2.9)], &look),
            Mark::Diamond => self.polygon(
                at,
                &[(0.0, -4.6), (4.0, 0.0), (0.0, 4.6), (-4.0, 0.0)],
                &look,
            ),
            Mark::Cross => {
                let stroke = format!(r#"stroke="{colour}" stroke-width="1.6""#);
                self.put(format_args!(
                    r#"<path d="M{:.1} {:.1}l6.4 6.4m0 -6.4l-6.4 6.4" {stroke}/>"#,
                    x - 3.2,
                    y - 3.2
                ));
            }
        }
    }

    fn polygon(&mut self, at: (f64, f64), corners: &[(f64, f64)], look: &str) {
        let list: Vec<String> = corners
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", at.0 + x, at.1 + y))
            .collect();
        self.put(format_args!(
            r#"<polygon points="{}" {look}/>"#,
            list.join(" ")
        ));
    }

    /// Returns the whole file.
    pub fn finish(self, title: &str) -> String {
        let Self {
            width,
            height,
            body,
        } = self;
        let (title, families) = (
            escaped(title),
            "system-ui, 'Helvetica Neue', Arial, sans-serif",
        );
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"{families}\" role=\"img\">\n\
             <title>{title}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"{GROUND}\"/>\n{body}</svg>\n"
        )
    }
}

/// The background colour.
const GROUND: &str = "#ffffff";

fn style(stroke: Stroke) -> String {
    let dash = match stroke.dash {
        "" => String::new(),
        dash => format!(r#" stroke-dasharray="{dash}""#),
    };
    format!(
        r#"stroke="{}" stroke-width="{:.1}"{dash}"#,
        stroke.colour, stroke.width
    )
}

fn escaped(words: &str) -> String {
    words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{Anchor, Mark, Stroke, Svg};

    #[test]
    fn a_drawing_is_well_formed_and_says_what_it_was_told() {
        let mut svg = Svg::new(100.0, 50.0);
        let stroke = Stroke {
            colour: "#123456",
            width: 1.5,
            dash: "4 2",
        };
        svg.line((0.0, 1.0), (2.25, 3.0), stroke);
        svg.path(&[(1.0, 2.0), (3.0, 4.0)], stroke);
        svg.text((5.0, 5.0), "a < b & c", (11.0, "#000"), Anchor::Middle);
        for mark in [
            Mark::Circle,
            Mark::Square,
            Mark::Triangle,
            Mark::Diamond,
            Mark::Cross,
            Mark::Dot,
        ] {
            svg.mark((9.0, 9.0), mark, "#654321", true);
        }
        let text = svg.finish("one \"title\"");
        assert!(
            text.contains(r##"<line x1="0.0" y1="1.0" x2="2.2" y2="3.0" stroke="#123456""##),
            "{text}"
        );
        assert!(text.contains(r#"stroke-dasharray="4 2""#));
        assert!(text.contains(">a &lt; b &amp; c</text>"));
        assert!(text.contains("<title>one &quot;title&quot;</title>"));
        // Every element closes itself or is closed.
        let opened = text.matches('<').count() - text.matches("</").count();
        let closed = text.matches("/>").count() + text.matches("</").count();
        assert_eq!(opened, closed, "{text}");
    }
}
