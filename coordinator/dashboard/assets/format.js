// Figures as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Bytes with three digits: `6.00 GiB`. */
export function bytes(count) {
  if (count === null || count === undefined) return "unknown";
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  if (unit === 0) return `${value} B`;
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${UNITS[unit]}`;
}

/** A span of milliseconds: `850 ms`, `12 s`, `3 min`, `2 h`. */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

/** The time of day of a moment in seconds since 1970. */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}

/** The time from now to a moment, or since it. */
export function fromNow(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const ms = seconds * 1000 - Date.now();
  return ms >= 0 ? `in ${span(ms)}` : `${span(-ms)} ago`;
}

/** A number with separators. */
export function number(value) {
  return value === null || value === undefined ? "–" : Number(value).toLocaleString("en-US");
}

/** A figure of a chart: three digits. */
export function figure(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value >= 100) return Math.round(value).toLocaleString("en-US");
  return value.toPrecision(value >= 10 ? 3 : 2);
}

/** Seconds of a chart: two digits, in ms below one second. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  const digits = (number) => Number(number.toPrecision(2)).toLocaleString("en-US");
  return value < 1 ? `${digits(value * 1000)} ms` : `${digits(value)} s`;
}

/** A word of the API for people: `lease_refused` as `lease refused`. */
export function words(text) {
  return String(text ?? "").replaceAll("_", " ");
}
