//! Refuses a run whose images do not fit into memory even with nothing on them.

use anyhow::{Result, bail};

use super::{Competitor, DeviceKind, Request};
use crate::results::available_memory;
use crate::show::size;
use crate::sides::Kind;

impl Request {
    /// Checks what the images in memory take together, before the first is made.
    ///
    /// # Errors
    ///
    /// It is more than there is.
    pub(super) fn check_memory(&self) -> Result<()> {
        let images = self.images_in_memory();
        if images == 0 {
            return Ok(());
        }
        let plan = self.image_plan()?;
        let needed = plan.structures().saturating_mul(images);
        // Where the system does not tell, the run tries.
        let available = available_memory().unwrap_or(u64::MAX);
        if needed > available {
            let plural = if images == 1 { "" } else { "s" };
            bail!(
                "{images} image{plural} of {} take{} {} of memory with nothing on them, and {} are \
                 there; choose a smaller --size, or less to run in turn",
                size(plan.size),
                if images == 1 { "s" } else { "" },
                size(needed),
                size(available)
            );
        }
        Ok(())
    }

    /// How many images the run holds in memory at once: one for each side, and with a volume a task
    /// as many as there are tasks.
    fn images_in_memory(&self) -> u64 {
        let settings = self.settings.len() as u64;
        let of = |competitor: &Competitor| match competitor {
            Competitor::Mounted(Kind::Kernel | Kind::Fuse2fs) => 1,
            Competitor::Mounted(Kind::Pext4) | Competitor::Library => settings,
            Competitor::Apart => settings * u64::from(self.plan.tasks),
        };
        match (&self.path, &self.device) {
            (Some(_), _) => 0,
            (None, _) if !self.compare.is_empty() => self.compare.iter().map(of).sum(),
            (None, DeviceKind::Image(_)) => 0,
            (None, DeviceKind::Ram | DeviceKind::Slow) => settings,
        }
    }
}
