//! Compares plans with a plain map under random changes; and tests the choices that users notice.

use std::collections::BTreeMap;

use pext4_ondisk::InodeNumber;
use pext4_ondisk::xattr::{self, Attribute, Block, Value, decode_inode_area};

use super::plan::{
    BlockPlan, Places, Plan, Room, ValueUses, end, remove, replaced, set, stays_in_block,
};
use crate::error::{Refusal, Result};
use crate::types::SetXattrMode;

/// The two places as bytes, as an image would have them.
struct Image {
    room: Room,
    area: Vec<u8>,
    block: Option<Vec<u8>>,
    /// How often the list of the block had not to be decoded.
    short_ways: u32,
}

impl Image {
    fn new(inode: usize, block: usize) -> Self {
        Self {
            room: Room {
                inode,
                block,
                cluster: 1,
            },
            area: vec![0; inode],
            block: None,
            short_ways: 0,
        }
    }

    fn places(&self) -> Places {
        Places {
            inode: decode_inode_area(&self.area).expect("sound"),
            block: self.block.as_ref().map_or(Vec::new(), |bytes| {
                let block = Block::decode(bytes).expect("sound");
                assert_eq!(block.references, 1);
                block.attributes
            }),
        }
    }

    fn carry_out(&mut self, plan: Plan) {
        if let Some(area) = plan.area {
            assert_eq!(area.len(), self.room.inode);
            self.area = area.into_vec();
        }
        match plan.block {
            BlockPlan::Keep => {}
            BlockPlan::Write(content) => {
                let block = self
                    .block
                    .get_or_insert_with(|| vec![0xFF; self.room.block]);
                content.put_into(block);
            }
            BlockPlan::Drop => self.block = None,
        }
    }

    fn set(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        self.set_as(name, value, SetXattrMode::Any)
    }

    fn set_as(&mut self, name: &[u8], value: &[u8], mode: SetXattrMode) -> Result<()> {
        let new = Attribute::new(1, name, value);
        let without_decoding = self.set_without_decoding(&new);
        let plan = set(self.places(), &self.room, new, mode)?;
        if let Some(short) = without_decoding {
            self.short_ways += 1;
            assert_eq!(short, plan, "both ways lead to one plan");
        }
        self.carry_out(plan);
        Ok(())
    }

    fn set_without_decoding(&self, new: &Attribute) -> Option<Plan> {
        let (inode, block) = (self.places().inode, self.block.as_ref()?);
        let stays = stays_in_block(&inode, &self.room, new);
        let plan = || xattr::replace_value(block, new).map(replaced);
        stays.then(plan).flatten()
    }

    fn remove(&mut self, name: &[u8]) -> Result<()> {
        let plan = remove(self.places(), &self.room, 1, name)?;
        self.carry_out(plan);
        Ok(())
    }

    fn get(&self, name: &[u8]) -> Option<Vec<u8>> {
        match &self.places().find(1, name)?.value {
            Value::Inline(value) => Some(value.to_vec()),
            Value::Inode { .. } => None,
        }
    }
}

#[test]
fn small_values_stay_in_the_inode_and_large_ones_go_to_the_block() {
    let mut image = Image::new(96, 1024);
    image.set(b"small", b"1").expect("it fits");
    assert!(image.block.is_none());
    image.set(b"large", &[7; 200]).expect("it fits");
    assert_eq!(image.places().inode.len(), 1);
    assert_eq!(image.places().block.len(), 1);
    image
        .set(b"small", &[8; 300])
        .expect("it moves to the block");
    assert_eq!(image.places().block.len(), 2);
    assert_eq!(image.area, vec![0; 96]);
    image.set(b"large", b"2").expect("it moves to the inode");
    image.remove(b"small").expect("it is there");
    assert!(image.block.is_none(), "an empty block is given up");
    assert_eq!(image.get(b"large").as_deref(), Some(&b"2"[..]));
}

#[test]
fn what_fits_nowhere_changes_nothing() {
    let mut image = Image::new(96, 1024);
    image.set(b"a", b"kept").expect("it fits");
    let error = image
        .set(b"a", &[1; 1024])
        .expect_err("larger than a block");
    assert!(error.is(Refusal::AttributesFull), "{error}");
    assert_eq!(image.get(b"a").as_deref(), Some(&b"kept"[..]));
    image
        .set(b"a", &[1; 1024 - 32 - 16 - 4 - 4])
        .expect("it fills the block");
    let mut bare = Image::new(0, 1024);
    bare.set(b"a", b"x")
        .expect("inodes of 128 bytes use the block");
    assert!(bare.block.is_some());
}

#[test]
fn the_mode_is_honoured() {
    let mut image = Image::new(96, 1024);
    let error = image
        .set_as(b"a", b"1", SetXattrMode::Replace)
        .expect_err("not there");
    assert!(error.is(Refusal::NoAttribute));
    image
        .set_as(b"a", b"1", SetXattrMode::Create)
        .expect("not there");
    let error = image
        .set_as(b"a", b"2", SetXattrMode::Create)
        .expect_err("there");
    assert!(error.is(Refusal::Exists));
    image
        .set_as(b"a", b"3", SetXattrMode::Replace)
        .expect("there");
    assert_eq!(image.get(b"a").as_deref(), Some(&b"3"[..]));
    assert!(
        image
            .remove(b"b")
            .expect_err("not there")
            .is(Refusal::NoAttribute)
    );
}

#[test]
fn an_equal_value_writes_nothing() {
    let mut image = Image::new(96, 1024);
    image.set(b"a", b"1").expect("it fits");
    let again = Attribute::new(1, b"a", b"1");
    let plan = set(image.places(), &image.room, again, SetXattrMode::Any).expect("it fits");
    assert_eq!(
        plan,
        Plan {
            area: None,
            block: BlockPlan::Keep,
            values: ValueUses::default(),
        }
    );
}

#[test]
fn agrees_with_a_plain_map() {
    let seed = 4711;
    println!("seed {seed}");
    let mut state: u64 = seed;
    let mut below = |end: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let mut image = Image::new(100, 1024);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut refused = 0;
    for _ in 0..5000 {
        let name = vec![b'a' + u8::try_from(below(12)).expect("small"); 1 + below(9) as usize];
        if below(3) == 0 {
            assert_eq!(image.remove(&name).is_ok(), model.remove(&name).is_some());
        } else {
            let byte = u8::try_from(below(256)).expect("a byte");
            let most = if below(2) == 0 { 12 } else { 400 };
            // Every second time one of the same length instead of one that is there.
            let which = below(2 * model.len() as u64 + 1) as usize;
            let (name, length) = match model.iter().nth(which) {
                Some((name, value)) => (name.clone(), value.len()),
                None => (name, below(most) as usize),
            };
            let value = vec![byte; length];
            match image.set(&name, &value) {
                Ok(()) => drop(model.insert(name, value)),
                Err(error) => {
                    assert!(error.is(Refusal::AttributesFull), "{error}");
                    refused += 1;
                }
            }
        }
        let places = image.places();
        let held: BTreeMap<_, _> = places
            .all()
            .map(|attribute| match &attribute.value {
                Value::Inline(value) => (attribute.name.to_vec(), value.to_vec()),
                Value::Inode { .. } => panic!("none was made"),
            })
            .collect();
        assert_eq!(held.len(), places.all().count(), "a name is in one place");
        assert_eq!(held, model);
        assert_eq!(image.block.is_some(), !places.block.is_empty());
    }
    assert!(refused > 10, "the places were never full");
    assert!(image.short_ways > 100, "{} short ways", image.short_ways);
}

/// An attribute whose value of `size` bytes is in this inode.
fn elsewhere(name: &[u8], inode: u32, size: u32) -> Attribute {
    Attribute {
        index: 1,
        name: name.into(),
        value: Value::Inode {
            inode: InodeNumber(inode),
            size,
        },
        hash: 1,
    }
}

#[test]
fn values_elsewhere_are_counted_by_entry() {
    let room = Room {
        inode: 96,
        block: 1024,
        cluster: 1,
    };
    let numbers = |list: &[u32]| list.iter().map(|&n| InodeNumber(n)).collect::<Vec<_>>();
    let mut places = Places::default();
    let first = elsewhere(b"a", 20, 3000);
    let plan = set(places.clone(), &room, first.clone(), SetXattrMode::Any).expect("it fits");
    assert_eq!(plan.values.taken, numbers(&[20]));
    assert_eq!(plan.values.charge.blocks, 3);
    places.inode.push(first);
    places.block.push(elsewhere(b"b", 21, 1024));
    places.block.push(elsewhere(b"c", 20, 3000));
    // An attribute in the inode changes only there; the block keeps its references.
    let small = Attribute::new(1, b"a", b"small");
    let plan = set(places.clone(), &room, small, SetXattrMode::Any).expect("it fits");
    assert_eq!(plan.values.left_in_inode, numbers(&[20]));
    assert_eq!(plan.values.left_in_block, numbers(&[]));
    assert_eq!(plan.values.charge.blocks, -3);
    let plan = remove(places.clone(), &room, 1, b"b").expect("it is there");
    assert_eq!(plan.values.taken, numbers(&[20]));
    assert_eq!(plan.values.left_in_block, numbers(&[21, 20]));
    assert_eq!(plan.values.charge.blocks, -1);
    let plan = end(&places, &room);
    assert_eq!(plan.values.left_in_inode, numbers(&[20]));
    assert_eq!(plan.values.left_in_block, numbers(&[21, 20]));
    assert_eq!(plan.values.charge.blocks, -7);
}
