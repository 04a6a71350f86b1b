//! The label of a volume, changed while it is open: with and without a journal, and with none of what
//! the field cannot hold.

mod images;

use images::Image;
use pext4_fs::Refusal;

#[test]
fn a_label_is_kept_and_one_that_does_not_fit_changes_nothing() {
    for arguments in [&["-L", "old"][..], &["-L", "old", "-O", "^has_journal"]] {
        let Some(image) = Image::make(arguments) else {
            return;
        };
        let volume = image.open();
        assert_eq!(volume.label(), b"old");
        for wrong in [&b"seventeen-letters"[..], b"a\0b"] {
            let refusal = volume.set_label(wrong).expect_err("it does not fit");
            assert!(refusal.is(Refusal::Invalid), "{refusal}");
        }
        assert_eq!(volume.label(), b"old");
        volume.set_label(b"sixteen-letters!").expect("it fits");
        volume.close().expect("a clean end");
        image.assert_clean();
        let volume = image.open();
        assert_eq!(volume.label(), b"sixteen-letters!");
        volume.set_label(b"").expect("none is one too");
        assert_eq!(volume.label(), b"");
        volume.close().expect("a clean end");
        image.assert_clean();
    }
}
