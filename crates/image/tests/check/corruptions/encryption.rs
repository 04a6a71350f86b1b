//! Corruptions of encrypted files.

use pext4_image::check::Kind;
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::xattr::{self, Attribute};

use super::Beside::Complains;
use super::Corruption;
use super::names::edit_directory;
use crate::bases::{Base, POLICY, VAULT, set_context};
use crate::image::Image;

/// The path of an entry of the encrypted directory.
fn inside(what: &str) -> String {
    format!("{VAULT}/ciphertext-{what}")
}

/// Gives a file another context: a modified policy and a nonce.
fn change_context(image: &mut Image, what: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut context = [&POLICY[..], &[7; 16]].concat();
    change(&mut context);
    set_context(image, &inside(what), &context);
}

/// Removes the encryption flag of an inode.
fn decrypt(image: &mut Image, what: &str) {
    let number = image.find(&inside(what));
    image.edit_inode(number, |inode| {
        inode.flags.remove(InodeFlags::ENCRYPT);
        inode.tail.fill(0);
    });
}

pub fn contexts() -> Vec<Corruption> {
    vec![
        (
            Kind::EncryptionContext,
            Base::Encrypted,
            Complains,
            |image| change_context(image, "a-file", |context| context.truncate(39)),
        ),
        (
            Kind::EncryptionContext,
            Base::Encrypted,
            Complains,
            |image| change_context(image, "a-file", |context| context.push(0)),
        ),
        (
            Kind::EncryptionContext,
            Base::Encrypted,
            Complains,
            // As long as one of the second version.
            |image| change_context(image, "a-file", |context| context[0] = 1),
        ),
        (
            Kind::EncryptionContext,
            Base::Encrypted,
            Complains,
            |image| change_context(image, "a-file", |context| context[0] = 0),
        ),
        (
            Kind::EncryptionContext,
            Base::Encrypted,
            Complains,
            |image| set_context(image, VAULT, &[]),
        ),
        (Kind::InodeFlags, Base::Encrypted, Complains, |image| {
            // An attribute, but not the one.
            let file = image.find(&inside("a-file"));
            image.edit_inode(file, |inode| {
                let attributes = [Attribute::new(9, b"d", &[2; 40])];
                xattr::encode_inode_area(&attributes, &mut inode.tail).expect("there is room");
            });
        }),
    ]
}

pub fn policies() -> Vec<Corruption> {
    vec![
        (
            Kind::EncryptionPolicy,
            Base::Encrypted,
            Complains,
            |image| decrypt(image, "a-file"),
        ),
        (
            Kind::EncryptionPolicy,
            Base::Encrypted,
            Complains,
            |image| decrypt(image, "folder"),
        ),
        (
            Kind::EncryptionPolicy,
            Base::Encrypted,
            Complains,
            |image| change_context(image, "folder", |context| context[20] ^= 1),
        ),
        (
            Kind::EncryptionPolicy,
            Base::Encrypted,
            Complains,
            |image| change_context(image, "slow-link", |context| context[1] = 9),
        ),
        (
            Kind::EncryptionPolicy,
            Base::Encrypted,
            Complains,
            // A version that is not known, and so none that the directory has.
            |image| change_context(image, "a-file", |context| context[0] = 3),
        ),
        (
            Kind::EncryptionPolicy,
            Base::Encrypted,
            Complains,
            |image| {
                change_context(image, "a-file", |context| {
                    context.drain(12..24);
                    context[0] = 1;
                });
            },
        ),
        (Kind::DirectoryRecord, Base::Encrypted, Complains, |image| {
            // Names that fold case have their hash behind them, for which there is no room.
            let vault = image.find(VAULT);
            image.edit_inode(vault, |inode| inode.flags |= InodeFlags::CASEFOLD);
        }),
        (Kind::NameShort, Base::Encrypted, Complains, |image| {
            edit_directory(image, VAULT, |bytes, _| {
                let name = b"ciphertext-a-fi";
                let at = bytes.windows(15).position(|found| found == name);
                bytes[at.expect("it is there") - 2] = 15;
            });
        }),
    ]
}

pub fn links() -> Vec<Corruption> {
    vec![
        (Kind::Symlink, Base::Encrypted, Complains, |image| {
            let fast = image.find(&inside("fast-link"));
            image.edit_inode(fast, |inode| inode.block[0] += 1);
        }),
        (Kind::Symlink, Base::Encrypted, Complains, |image| {
            let slow = image.find(&inside("slow-link"));
            let block = image.blocks(slow)[0];
            image.block(block)[1] = 1;
        }),
        (Kind::Symlink, Base::Encrypted, Complains, |image| {
            // Too short to have a block.
            let slow = image.find(&inside("slow-link"));
            let block = image.blocks(slow)[0];
            image.block(block)[0] = 48;
            image.edit_inode(slow, |inode| inode.size = 50);
        }),
    ]
}
