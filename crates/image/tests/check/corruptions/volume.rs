//! Corruptions of the superblock, the descriptors, the journal and multiple mount protection.

use pext4_image::check::Kind;
use pext4_ondisk::feature::{Compat, Incompat, ReadOnlyCompat};
use pext4_ondisk::group_descriptor::GroupFlags;
use pext4_ondisk::journal::fast_commit::AreaWriter;
use pext4_ondisk::journal::{JournalIncompat, JournalSuperblock};
use pext4_ondisk::superblock::State;
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::Beside::{Complains, NotAsked, Silent};
use super::{Corruption, NOTE};
use crate::bases::{Base, write_transactions};
use crate::image::Image;

/// Bytes of a block of the images that get fast commits.
const BLOCK: usize = 1024;

/// Lets an area of fast commits wait behind the one transaction of a journal.
pub fn add_fast_commits(image: &mut Image) {
    let log = image.blocks(8);
    let place = image.block(log[0]).first_chunk_mut().expect("a block");
    let mut superblock = JournalSuperblock::decode(place).expect("sound");
    superblock.incompat.insert(JournalIncompat::FAST_COMMIT);
    superblock.num_fast_commit_blocks = 2;
    *place = superblock.encode();
    let next = superblock.sequence.next();
    let first = superblock.first_fast_commit().expect("two blocks of them");
    let mut area = AreaWriter::new(BLOCK);
    area.head(0, next);
    let name = b"no such name";
    area.unlink(InodeNumber::ROOT, InodeNumber(12), name)
        .tail(next);
    image
        .block(log[first as usize])
        .copy_from_slice(area.bytes());
}

pub fn volume() -> Vec<Corruption> {
    vec![
        (Kind::SuperblockLost, Base::Plain, Complains, |image| {
            image.bytes[1024 + 0x38] ^= 0xFF;
        }),
        (Kind::SuperblockLost, Base::Plain, Complains, |image| {
            // An unknown feature, with a valid checksum.
            image.bytes[1024 + 0x63] ^= 0x40;
        }),
        (Kind::SuperblockField, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| {
                superblock.reserved_blocks = superblock.blocks_count / 2 + 1;
            });
        }),
        (
            Kind::FeatureMissing,
            Base::NoneReserved,
            Complains,
            |image| {
                // The inode that keeps blocks for descriptors is 4 GiB long.
                image.edit_superblock(|superblock| {
                    let features = &mut superblock.features.read_only_compat;
                    features.remove(ReadOnlyCompat::LARGE_FILE);
                });
            },
        ),
        (Kind::SuperblockChecksum, Base::Plain, Complains, |image| {
            image.bytes[1024 + 0x3FC] ^= 1;
        }),
        (Kind::DeviceTooSmall, Base::Plain, Complains, |image| {
            image.bytes.truncate(12 << 20);
        }),
        (Kind::FeaturesConflict, Base::NoSums, Complains, |image| {
            image.edit_superblock(|superblock| {
                superblock.features.incompat |= Incompat::CSUM_SEED;
            });
        }),
        (Kind::FeaturesConflict, Base::Plain, Complains, |image| {
            // Without a journal there is nothing to make its entries safe.
            image.edit_superblock(|superblock| {
                superblock.features.compat.remove(Compat::HAS_JOURNAL);
                superblock.journal_inode = InodeNumber(0);
            });
        }),
        (Kind::FeatureMissing, Base::NoSums, Complains, |image| {
            // The journal is still there.
            image.edit_superblock(|superblock| {
                superblock.features.compat.remove(Compat::HAS_JOURNAL);
            });
        }),
        (Kind::JournalInode, Base::NoJournal, Complains, |image| {
            image.edit_superblock(|superblock| {
                superblock.features.compat |= Compat::HAS_JOURNAL;
            });
        }),
        (Kind::FeatureMissing, Base::Plain, Complains, |image| {
            let sparse = image.find("/sparse");
            image.edit_inode(sparse, |inode| inode.size = 3 << 30);
            image.edit_superblock(|superblock| {
                superblock
                    .features
                    .read_only_compat
                    .remove(ReadOnlyCompat::LARGE_FILE);
            });
        }),
        (Kind::SuperblockField, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| {
                superblock.features.incompat |= Incompat::CASEFOLD;
                superblock.encoding = 2;
            });
        }),
        (Kind::SuperblockField, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| superblock.reserved_blocks = 1 << 20);
        }),
        (Kind::SuperblockField, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| superblock.clusters_per_group = 4096);
        }),
        (Kind::SuperblockField, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| superblock.journal_uuid[4] = 1);
        }),
        (Kind::SuperblockField, Base::NoJournal, Complains, |image| {
            image.edit_superblock(|superblock| superblock.journal_uuid[4] = 1);
        }),
        (
            Kind::SuperblockField,
            Base::MetaGroups,
            Complains,
            |image| {
                image.edit_superblock(|superblock| superblock.reserved_gdt_blocks = 5);
            },
        ),
        (Kind::JournalSuperblock, Base::Plain, Complains, |image| {
            let block = image.blocks(8)[0];
            image.block(block)[0x28] = 1;
        }),
        (Kind::JournalSuperblock, Base::Plain, Complains, |image| {
            let block = image.blocks(8)[0];
            image.block(block)[0x2C] = 1;
        }),
        (Kind::JournalSuperblock, Base::Plain, Complains, |image| {
            let block = image.blocks(8)[0];
            image.block(block)[0x43] = 2;
        }),
        (Kind::StateUnclean, Base::NoJournal, Silent(NOTE), |image| {
            image.edit_superblock(|superblock| superblock.state.remove(State::CLEAN));
        }),
        (Kind::StateErrors, Base::Plain, Silent(NOTE), |image| {
            image.edit_superblock(|superblock| superblock.state.insert(State::ERRORS));
        }),
        (Kind::ErrorRecord, Base::Plain, Silent(NOTE), |image| {
            image.edit_superblock(|superblock| superblock.error_count = 3);
        }),
        (Kind::JournalPending, Base::Dirty, Silent(NOTE), |_| {}),
        (Kind::JournalUnflagged, Base::Dirty, Complains, |image| {
            image.edit_superblock(|superblock| {
                superblock.features.incompat.remove(Incompat::RECOVER);
            });
        }),
        (
            Kind::JournalUnreplayable,
            Base::Dirty,
            Silent("with -n it replays nothing, and so does not see it"),
            |image| {
                let log = image.blocks(8);
                // The logged block behind the descriptor.
                image.block(log[2])[100] ^= 1;
            },
        ),
        (
            Kind::JournalSupersededDamage,
            Base::Plain,
            Silent("with -n it replays nothing, and so does not see it"),
            |image| {
                write_transactions(image, "jo -c -v 3", 2);
                let log = image.blocks(8);
                // The block of the first transaction, which the second one writes again.
                image.block(log[2])[100] ^= 1;
            },
        ),
        (
            Kind::JournalUnsupported,
            Base::Dirty,
            NotAsked("it wants a longer journal for them: tested elsewhere"),
            add_fast_commits,
        ),
        (Kind::JournalSuperblock, Base::Plain, Complains, |image| {
            let log = image.blocks(8);
            image.block(log[0])[0] ^= 0xFF;
        }),
        (Kind::JournalBackup, Base::Plain, Silent(NOTE), |image| {
            image.edit_superblock(|superblock| superblock.journal_backup[5] ^= 1);
        }),
        (
            Kind::BackupSuperblock,
            Base::Plain,
            Silent("what it thinks of backups it tells only by mending them"),
            |image| image.block(8193)[0x68] ^= 1,
        ),
        (
            Kind::BackupDescriptors,
            Base::Plain,
            Silent("it does not compare descriptors with their backups"),
            |image| image.block(8194)[0] ^= 1,
        ),
        (Kind::MmpBlock, Base::Mmp, Complains, |image| {
            let block = image.superblock().mmp_block.get();
            image.block(block)[0] ^= 1;
        }),
        (Kind::MmpBlock, Base::Mmp, Complains, |image| {
            set_mmp_sequence(image, pext4_ondisk::mmp::SEQUENCE_CHECKING);
        }),
        (Kind::MmpBlock, Base::Mmp, Complains, |image| {
            set_mmp_sequence(image, 0xFF4D_4D51);
        }),
        (
            Kind::MmpInUse,
            Base::Mmp,
            NotAsked("it waits for many seconds"),
            |image| set_mmp_sequence(image, 7),
        ),
        (Kind::DescriptorChecksum, Base::Plain, Complains, |image| {
            let range = image.descriptor_range(1);
            image.bytes[range][0x1E] ^= 1;
        }),
        (Kind::DescriptorPlace, Base::Plain, Complains, |image| {
            image.edit_descriptor(1, |descriptor| {
                descriptor.block_bitmap = BlockNumber(1 << 20);
            });
        }),
        (Kind::DescriptorFlags, Base::NoSums, Complains, |image| {
            image.edit_descriptor(1, |descriptor| {
                descriptor.flags |= GroupFlags::INODE_UNINIT;
            });
        }),
        (Kind::MetadataOverlap, Base::Plain, Complains, |image| {
            let table = image.descriptor(0).inode_table;
            image.edit_descriptor(1, |descriptor| descriptor.block_bitmap = table);
        }),
    ]
}

fn set_mmp_sequence(image: &mut Image, sequence: u32) {
    let (block, seed) = (image.superblock().mmp_block.get(), image.seed());
    let mut mmp = pext4_ondisk::mmp::Mmp::clean(5);
    mmp.sequence = sequence;
    mmp.encode(image.block(block), seed);
}
