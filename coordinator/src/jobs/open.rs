//! The start of jobs: the store is opened, its records are read, and files that nobody names are removed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use model_boss_jobs::{BatchRecord, JobRecord, KeptKind, StoredUpload};
use model_boss_protocol::chain;
use tokio::time::sleep;

use super::book::{BATCH, JOB, JobBook, UPLOAD};
use super::desk::{Jobs, StoreGate, on_disk};

/// The pause before the store is opened again.
const OPEN_AGAIN: Duration = Duration::from_secs(1);

impl Jobs {
    /// Opens the store and runs the jobs as long as the process runs. `router` answers their requests.
    pub(crate) async fn serve(self: Arc<Self>, router: Router) {
        // There is one router in a process.
        let _ = self.router.set(router);
        let records = loop {
            match self.journal.take_over().await {
                Ok(records) => break records,
                Err(error) if error.is_lasting() => {
                    let why = chain(&*error);
                    self.state.trouble(&self.folder.beside("records"), why.clone());
                    self.gate.send_replace(StoreGate::Shut(why));
                    return;
                }
                Err(error) => {
                    let why = chain(&*error);
                    self.state.trouble(&self.folder.beside("records"), why.clone());
                    self.gate.send_replace(StoreGate::Opening(why));
                }
            }
            tokio::select! {
                () = sleep(OPEN_AGAIN) => {}
                () = self.draining.cancelled() => return,
            }
        };
        self.state.well(&self.folder.beside("records"));
        if let Err(why) = self.read(records) {
            self.state.trouble(&self.folder.beside("records"), why.clone());
            self.gate.send_replace(StoreGate::Shut(why));
            return;
        }
        if let Err(error) = self.sweep().await {
            // Files that stay take room, and nothing else.
            tracing::warn!("files of jobs that are gone stay: {}", error.message);
        }
        self.open_secret().await;
        let open = self.book().table.open();
        if open > 0 {
            tracing::info!("{open} jobs wait from an earlier run");
        }
        self.gate.send_replace(StoreGate::Open);
        tokio::join!(
            Arc::clone(&self).run(),
            Arc::clone(&self).deliver_webhooks(),
            Arc::clone(&self).run_batches(),
            Arc::clone(&self).keep_up()
        );
    }

    /// Fills the book. A record that cannot be read stops the start: nothing is dropped for a reason that is not known.
    fn read(&self, records: Vec<(String, String)>) -> Result<(), String> {
        let mut read = JobBook::default();
        for (name, text) in records {
            let wrong = |error: serde_json::Error| {
                format!(
                    "the record '{name}' of the jobs cannot be read ({error}); start the release that wrote it, or move jobs.redb and the folder jobs away"
                )
            };
            if name.starts_with(JOB) {
                read.table.insert(serde_json::from_str::<JobRecord>(&text).map_err(wrong)?);
            } else if name.starts_with(UPLOAD) {
                let upload: StoredUpload = serde_json::from_str(&text).map_err(wrong)?;
                read.uploads.insert(upload.id.clone(), upload);
            } else if name.starts_with(BATCH) {
                let batch: BatchRecord = serde_json::from_str(&text).map_err(wrong)?;
                read.batches.insert(batch.id.clone(), batch);
            } else {
                return Err(format!(
                    "the jobs have a record '{name}' of an unknown kind; start the release that wrote it"
                ));
            }
        }
        *self.book() = read;
        Ok(())
    }

    /// Removes files that no record names: those of orders that were never accepted, and of results that were never
    /// kept.
    async fn sweep(&self) -> Result<(), model_boss_protocol::ApiError> {
        let named = {
            let book = self.book();
            let (mut bodies, mut results) = (HashSet::new(), HashSet::new());
            for entry in book.table.newest_first() {
                bodies.insert(entry.record.id.to_string());
                if entry.record.answer.is_some() {
                    results.insert(entry.record.id.to_string());
                }
            }
            let mut uploads: HashSet<String> = book.uploads.keys().cloned().collect();
            for batch in book.batches.values().filter(|batch| !batch.state.is_final()) {
                uploads.extend([batch.output_file.clone(), batch.error_file.clone()]);
            }
            [(KeptKind::Body, bodies), (KeptKind::Result, results), (KeptKind::Upload, uploads)]
        };
        let folder = self.folder.clone();
        let removed = on_disk(move || {
            let mut removed = 0_usize;
            for (kind, named) in named {
                removed = removed.saturating_add(folder.sweep(kind, &named)?);
            }
            Ok(removed)
        })
        .await?;
        if removed > 0 {
            tracing::info!("{removed} files of jobs without a record were removed");
        }
        Ok(())
    }
}
