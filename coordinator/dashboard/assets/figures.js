// The three charts of the last hour.

import { chart } from "./chart.js";
import { h } from "./dom.js";
import { figure, seconds } from "./format.js";
import { onChange, store } from "./store.js";

/** Sums of the last minute, at each point. */
function perMinute(column) {
  return column.map((_, i) => column.slice(Math.max(0, i - 5), i + 1).reduce((sum, value) => sum + value, 0));
}

/** The charts as one element. */
export function figures(isShown) {
  const charts = [
    chart({
      title: "Tokens",
      unit: "per second",
      curves: [
        { name: "tokens", colour: "--accent", swatch: "accent", read: (all) => all.tokens_per_s, format: figure },
      ],
    }),
    chart({
      title: "First token",
      unit: "",
      logarithmic: true,
      curves: [
        { name: "p50", colour: "--accent", swatch: "accent", read: (all) => all.first_token_p50_s, format: seconds },
        { name: "p95", colour: "--second", swatch: "second", read: (all) => all.first_token_p95_s, format: seconds },
      ],
    }),
    chart({
      title: "Swaps",
      unit: "per minute",
      curves: [
        { name: "swaps", colour: "--accent", swatch: "accent", read: (all) => perMinute(all.swaps), format: figure },
      ],
    }),
  ];
  const draw = () => isShown() && charts.forEach((one) => one.draw(store.views.history));
  onChange(["history", "theme", "size", "shown"], draw);
  return h(
    "div",
    { class: "charts" },
    charts.map((one) => one.node),
  );
}
