//! Files that clients upload: kept whole, listed, read in parts, and removed.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use model_boss_jobs::{DraftFile, FilePurpose, JobOwner, KeptKind, StoredUpload, drawn_name};
use model_boss_protocol::{ApiError, ErrorCode};

use super::book::{UPLOAD, delete, put_upload};
use super::desk::{Jobs, on_disk};
use super::inner::may_see;
use super::wall::now;
use crate::keys::RequestSender;

/// A file that has arrived.
pub(crate) struct UploadWish {
    /// Its name, which is also that of its draft.
    pub(crate) id: String,
    /// The sender.
    pub(crate) owner: JobOwner,
    /// The name that the client gave it.
    pub(crate) filename: String,
    /// Its use.
    pub(crate) purpose: FilePurpose,
    /// The time for which it is kept, if that has an end.
    pub(crate) keep: Option<Duration>,
}

/// Room for bytes that arrive. It is given back when the value is dropped.
pub(crate) struct ArrivalRoom {
    jobs: Arc<Jobs>,
    bytes: u64,
}

impl ArrivalRoom {
    /// Takes room for more bytes.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), ApiError> {
        let mut book = self.jobs.book();
        self.jobs.check_room(&book, bytes)?;
        book.arriving = book.arriving.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }
}

impl Drop for ArrivalRoom {
    fn drop(&mut self) {
        let mut book = self.jobs.book();
        book.arriving = book.arriving.saturating_sub(self.bytes);
    }
}

impl Jobs {
    /// Room for a file whose size is not known yet.
    pub(crate) fn arrival(self: &Arc<Self>) -> ArrivalRoom {
        ArrivalRoom { jobs: Arc::clone(self), bytes: 0 }
    }

    /// A name for a new file.
    pub(crate) fn new_file_name() -> Result<String, ApiError> {
        drawn_name("file-", now()).map_err(no_random_numbers)
    }

    /// Keeps a file whose content is in the draft. `room` was taken while it arrived.
    pub(crate) async fn keep_upload(
        self: &Arc<Self>,
        wish: UploadWish,
        content: DraftFile,
        room: ArrivalRoom,
    ) -> Result<StoredUpload, ApiError> {
        self.ready()?;
        let bytes = on_disk(move || content.finish()).await?;
        let UploadWish { id, owner, filename, purpose, keep } = wish;
        let created = now();
        let expires = keep.map(|keep| created.after(keep));
        let upload = StoredUpload { id, owner, filename, purpose, bytes, created, expires };
        let kept = self.journal.commit(vec![put_upload(&upload)], vec![delete(UPLOAD, &upload.id)]).await;
        if let Err(error) = kept {
            self.remove_file(KeptKind::Upload, upload.id);
            return Err(error);
        }
        self.book().uploads.insert(upload.id.clone(), upload.clone());
        drop(room);
        Ok(upload)
    }

    /// A file that this sender may see.
    pub(crate) fn upload(&self, sender: &RequestSender, id: &str) -> Result<StoredUpload, ApiError> {
        self.ready()?;
        let found = self.book().uploads.get(id).filter(|upload| may_see(sender, &upload.owner)).cloned();
        found.ok_or_else(|| no_file(id))
    }

    /// The files that this sender may see, the newest first.
    pub(crate) fn uploads(&self, sender: &RequestSender) -> Result<Vec<StoredUpload>, ApiError> {
        self.ready()?;
        Ok(self.book().uploads.values().rev().filter(|upload| may_see(sender, &upload.owner)).cloned().collect())
    }

    /// Opens a file's content.
    pub(crate) async fn open_file(&self, kind: KeptKind, name: &str) -> Result<(File, u64), ApiError> {
        let (folder, name) = (self.folder.clone(), name.to_owned());
        on_disk(move || {
            let file = folder.read(kind, &name)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        })
        .await
    }

    /// Removes a file at its owner's wish.
    pub(crate) async fn delete_upload(self: &Arc<Self>, sender: &RequestSender, id: &str) -> Result<(), ApiError> {
        self.upload(sender, id)?;
        if let Some(batch) = self.book().batch_that_needs(id) {
            let message = format!("{} has not ended and needs the file; cancel it, or wait for its end", batch.id);
            return Err(ApiError::new(ErrorCode::FileInUse, message));
        }
        self.forget_upload(id).await
    }

    pub(super) async fn forget_upload(self: &Arc<Self>, id: &str) -> Result<(), ApiError> {
        let Some(upload) = self.book().uploads.get(id).cloned() else { return Ok(()) };
        self.journal.commit(vec![delete(UPLOAD, id)], vec![put_upload(&upload)]).await?;
        self.book().uploads.remove(id);
        self.remove_file(KeptKind::Upload, id.to_owned());
        Ok(())
    }
}

pub(super) fn no_random_numbers(error: impl std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::Internal, format!("the system gives no random numbers: {error}"))
}

fn no_file(id: &str) -> ApiError {
    let shown: String = id.chars().take(80).collect();
    ApiError::new(ErrorCode::FileNotFound, format!("there is no file '{shown}'; GET /v1/files lists them"))
}
