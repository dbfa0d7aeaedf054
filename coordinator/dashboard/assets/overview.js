// The first view: charts, devices, slots and requests of this moment.

import { h } from "./dom.js";
import { devices } from "./devices.js";
import { figures } from "./figures.js";
import { running, waiting } from "./queue.js";
import { isShown } from "./router.js";
import { slots } from "./slots.js";

/** The view. */
export function overview() {
  const shown = () => isShown("overview");
  const charts = h(
    "section",
    { "aria-labelledby": "hour-title" },
    h("h2", { id: "hour-title" }, "Last hour"),
    figures(shown),
  );
  const element = h("div", { class: "view" }, charts, devices(shown), slots(shown), waiting(shown), running(shown));
  return { id: "overview", title: "Overview", element };
}
