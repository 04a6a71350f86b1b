use super::assigned::{CHANGES, is_assigned};
use super::{Naming, fold, hides_behind_dots, is_encoded};
use proptest::prelude::*;

fn folded(name: &str) -> String {
    String::from_utf8(fold(name.as_bytes()).into_owned()).expect("what was text is text")
}

#[test]
fn names_that_differ_in_case_or_composition_are_equal() {
    let equal = [
        ("README", "readme"),
        ("Stra\u{DF}e", "STRASSE"),
        ("\u{C4}pfel", "a\u{308}PFEL"),
        ("\u{3A3}\u{38A}\u{3A3}", "\u{3C3}\u{3AF}\u{3C2}"),
        ("\u{212B}", "a\u{30A}"),
        ("\u{AC00}", "\u{1100}\u{1161}"),
        ("na\u{AD}me", "NAME"),
        ("q\u{323}\u{307}", "Q\u{307}\u{323}"),
        ("\u{FB03}", "FFI"),
        ("\u{200D}", "\u{FE0F}"),
    ];
    for (one, other) in equal {
        assert_eq!(folded(one), folded(other), "{one} and {other}");
        assert!(Naming::Folded.is_same(one.as_bytes(), other.as_bytes()));
        assert!(!Naming::Exact.is_same(one.as_bytes(), other.as_bytes()));
    }
    for (one, other) in [
        ("a", "b"),
        ("\u{131}", "I"),
        ("e\u{301}", "e"),
        ("AB", "abc"),
    ] {
        assert_ne!(folded(one), folded(other), "{one} and {other}");
    }
}

#[test]
fn opaque_names_equal_themselves_alone() {
    // Bad UTF-8, an overlong slash, a surrogate.
    let opaque: [&[u8]; 3] = [b"A\xFF", b"A\xC0\xAF", b"A\xED\xA0\x80"];
    for name in opaque {
        assert_eq!(*fold(name), *name);
        assert!(!is_encoded(name) && is_encoded(b"A"));
        let lower = name.to_ascii_lowercase();
        assert!(Naming::Folded.is_same(name, name) && !Naming::Folded.is_same(name, &lower));
    }
}

#[test]
fn later_characters_stand_for_themselves() {
    // A capital letter of Unicode 14, marks of Unicode 14 and 15 beside a known one, nobody's.
    assert_eq!(folded("A\u{2C2F}"), "a\u{2C2F}");
    assert_eq!(folded("A\u{301}\u{1DFA}\u{323}"), "a\u{301}\u{1DFA}\u{323}");
    assert_eq!(folded("A\u{10EFD}"), "a\u{10EFD}");
    assert_eq!(folded("\u{C4}\u{2FE0}\u{C4}"), "a\u{308}\u{2FE0}a\u{308}");
}

#[test]
fn dots_are_themselves() {
    let wanted = Naming::Folded.wanted(b".\xE2\x80\x8D");
    assert!(wanted.is(b".\xE2\x80\x8D") && !wanted.is(b"."));
    assert!(hides_behind_dots(b".\xE2\x80\x8D") && hides_behind_dots("\u{AD}..".as_bytes()));
    assert!(!hides_behind_dots(b".") && !hides_behind_dots(b"..") && !hides_behind_dots(b"..."));
}

#[test]
fn the_assigned_characters_are_as_many_as_the_standard_says() {
    // Of Unicode 12.1: 137,929 graphic and format characters, 65 controls, 137,468 for private
    // use, 66 noncharacters; and 2,048 surrogates, which the table counts.
    let ends = CHANGES.chunks(2).map(|pair| match *pair {
        [start, end] => end - start,
        [start] => 0x11_0000 - start,
        _ => 0,
    });
    assert_eq!(ends.sum::<u32>(), 137_929 + 65 + 137_468 + 66 + 2_048);
    assert!(CHANGES.is_sorted());
    assert!(is_assigned('\u{32FF}') && !is_assigned('\u{9FF0}') && is_assigned('\u{10FFFF}'));
}

proptest! {
    #[test]
    fn what_is_folded_stays(
        name in any::<String>(),
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let once = fold(name.as_bytes()).into_owned();
        prop_assert_eq!(&*fold(&once), &*once);
        let once = fold(&bytes).into_owned();
        prop_assert_eq!(&*fold(&once), &*once);
    }

    #[test]
    fn upper_and_lower_case_are_equal(
        name in "[a-zA-Z0-9 \u{E0}-\u{F6}\u{430}-\u{44F}]{0,60}",
    ) {
        let upper = name.to_uppercase();
        prop_assert!(Naming::Folded.is_same(name.as_bytes(), upper.as_bytes()));
    }
}
