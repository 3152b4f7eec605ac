//! The checks before anything is made.

use crate::error::Result;
use crate::files::Pinned;
use crate::sandbox::{self, Guarantee, Options, Report};
use crate::task::definition::hosted;
use crate::task::definition::image::{self, Opened};
use crate::task::definition::layout::Layout;
use crate::task::definition::plan::{check_git, checked_workspace, options};
use crate::task::definition::{Definition, Keep, WorkspaceSource, exposure, hidden, mounts};
use crate::task::ended::{keep, prune, reconcile};
use crate::task::git::GitOptions;
use crate::task::life::Watcher;
use crate::task::life::{canary, missing};
use crate::task::output::result::Expected;
use crate::task::records::record::Record;
use crate::task::secrets::{Secret, TaskSecrets};
use crate::task::store::Store;
use std::borrow::Cow;

pub(super) struct Request<'run> {
    pub store: &'run Store,
    /// As the machine's rules admit it.
    pub definition: Cow<'run, Definition>,
    /// The isolation that the machine's rules declare for the backend.
    declared: Option<Guarantee>,
    pub is_hosted: bool,
    /// Host paths, held open from their check on.
    pub pinned: Pinned,
    pub image: Option<Opened>,
    pub layout: Layout,
    /// Checked, without the workspace of a repository and without secrets.
    pub options: Options,
    pub expected: Expected,
    pub secrets: Vec<Secret>,
    /// With files as they are held open.
    pub git: GitOptions,
}

impl<'run> Request<'run> {
    /// Makes nothing.
    pub(super) fn check(store: &'run Store, definition: &'run Definition) -> Result<Request<'run>> {
        // Before anything of the store or of a path is opened.
        let admitted = hosted::admit(store, definition)?;
        let is_hosted = admitted.is_some();
        let (definition, declared, mut pinned) = match admitted {
            Some(admitted) => (Cow::Owned(admitted.definition), admitted.declared, admitted.pinned),
            None => (Cow::Borrowed(definition), None, Pinned::default()),
        };
        keep::check(&definition)?;
        definition.naming.check()?;
        let image = image::open(store, &definition)?;
        let mut layout = Layout::of(&definition, image.as_ref(), store)?;
        // A worktree that names another repository since its check shows none.
        layout.repository = layout.repository.filter(|path| !is_hosted || pinned.has(path));
        let mut options = options(&definition, &layout, image.as_ref(), checked_workspace(&definition)?)?;
        options.check()?;
        keep::check_owners(&definition, &options)?;
        mounts::hold_folders(&definition, layout.repository.as_deref(), &mut pinned)?;
        mounts::hold(&definition, store, &mut pinned)?;
        options.pinned.clone_from(&pinned);
        mounts::hold_outputs(&definition, &mut pinned)?;
        if let WorkspaceSource::Directory(folder) = &definition.workspace {
            exposure::check(folder, &pinned.path(folder), store)?;
        }
        hidden::complete(&definition, &mut options)?;
        layout.notes.extend(hidden::note(&definition, &options));
        definition.artifacts.check(&pinned)?;
        check_git(&definition)?;
        let expected = definition.result.read(&pinned)?;
        let planted = if definition.canary { canary::secrets()? } else { Vec::new() };
        let open = |secret: &Secret| Secret { source: secret.source.pinned(&pinned), ..secret.clone() };
        let secrets = definition.secrets.iter().map(open).chain(planted).collect();
        let git = definition.git.pinned(&pinned, is_hosted);
        Ok(Request { store, definition, declared, is_hosted, pinned, image, layout, options, expected, secrets, git })
    }

    /// Makes the disk beside all that follows. A task that waits for its turn has no disk yet.
    pub(super) fn begin_disk_early(&self) {
        if self.definition.max_parallel.is_none() {
            self.begin_disk();
        }
    }

    /// Begins to make the disk, unless it is a file that outlives the task.
    pub(super) fn begin_disk(&self) {
        if self.definition.keep == Keep::No {
            sandbox::begin_disk(&self.definition.sandbox.limits, &self.store.workshop());
        }
    }

    /// Reaps what dead supervisors left before it refuses a full store.
    pub(super) fn make_room(&self) -> Result<()> {
        let least_free = prune::least_free(self.is_hosted)?;
        if self.store.has_room(least_free).is_err() {
            reconcile::reap(self.store)?;
            self.store.has_room(least_free)?;
        }
        Ok(())
    }

    /// Copies the image's files if they cannot be mounted, and passes on what a caller may not expect.
    pub(super) fn open_image(&mut self, watcher: &mut dyn Watcher) -> Result<()> {
        let limits = &self.definition.sandbox.limits;
        if let Some(why) = self.image.as_mut().map(|image| image.copy_if_needed(limits)).transpose()?.flatten() {
            watcher.note(&why);
        }
        self.options.image = self.image.as_ref().map(|image| image.root.clone());
        self.layout.notes.iter().for_each(|note| watcher.hint(note));
        Ok(())
    }

    pub(super) fn record(&self, id: &str, held: &TaskSecrets) -> Record {
        let mut record = Record::new(id, &self.definition, &self.layout, self.image.as_ref(), held);
        record.guarantee = self.declared.or(record.guarantee);
        record
    }

    /// Sets the declared level of isolation, and better advice if only the host has the command.
    pub(super) fn improve(&self, mut report: Report) -> Report {
        if !self.is_hosted {
            report.error = report.error.map(|error| missing::explain(error, &self.definition));
        }
        if let Some(declared) =
            self.declared.filter(|_| report.guarantee == self.definition.sandbox.backend.guarantee())
        {
            report.guarantee = declared;
        }
        report
    }
}
