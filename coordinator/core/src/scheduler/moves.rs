//! Moves of loaded models from one device to another (DM-5).

use model_boss_protocol::{ApiError, DeviceId, ErrorCode, ModelId, RequestId};

use super::Scheduler;
use crate::Effect;
use crate::slot::SlotState;

impl Scheduler {
    pub(super) fn move_model(&mut self, request: RequestId, name: &ModelId, device: &DeviceId) {
        if self.is_known(request) {
            return;
        }
        let model = match self.admit_model(name.as_str()) {
            Ok(model) => model,
            Err(error) => return self.refuse(request, error),
        };
        let ready = |slot: &model_boss_protocol::SlotId| matches!(self.pool[*slot].state, SlotState::Ready(_));
        let Some(slot) = self.catalog[model].serving.filter(ready) else {
            let message = format!("model '{name}' is not loaded");
            return self.refuse(request, ApiError::new(ErrorCode::ModelNotLoaded, message).with_param("model"));
        };
        if self.devices.get(device).is_none() {
            let error = self.no_such_device(device);
            return self.refuse(request, error);
        }
        let parts = &self.pool[slot].parts;
        if parts.len() == 1 && parts[0].0 == *device {
            self.out.push(Effect::Done { request });
            return;
        }
        let message = format!("model '{name}' stays where it is: there is no second copy of it");
        self.refuse(request, ApiError::new(ErrorCode::MigrationFailed, message).with_param("device"));
    }
}
