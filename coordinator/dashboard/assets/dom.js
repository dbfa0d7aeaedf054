// Elements, made and updated node by node. Text is always text: nothing here makes markup of a string.

/** An element with attributes, listeners (`on: {click}`) and children (nodes or texts; empty ones are left out). */
export function h(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (key === "class") node.className = value;
    else if (key === "value" || key === "checked" || key === "hidden") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

/** Sets the text of a node if it differs, so that an unchanged node costs no layout. */
export function setText(node, text) {
  const value = String(text ?? "");
  if (node.textContent !== value) node.textContent = value;
}

/** Sets or removes an attribute if it differs. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

const ROWS = Symbol("rows");

/**
 * Shows one row for each item, in order. A row is made once per key by `make`, which returns `{ node, update }`; it
 * keeps its node, and with it focus and selection, as long as an item has its key.
 */
export function keyed(parent, items, key, make) {
  const before = parent[ROWS] ?? new Map();
  const after = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    if (after.has(name)) continue;
    const row = before.get(name) ?? make(item);
    before.delete(name);
    after.set(name, row);
    row.update?.(item);
    if (row.node === place) place = place.nextSibling;
    else parent.insertBefore(row.node, place);
  }
  for (const row of before.values()) row.node.remove();
  parent[ROWS] = after;
}

/** A table with these headings, whose cells repeat them on narrow screens. Returns the table and its body. */
export function table(label, headings) {
  const body = h("tbody");
  const name = (heading) => heading || h("span", { class: "sr" }, "Actions");
  const head = h(
    "tr",
    {},
    headings.map((heading) => h("th", { scope: "col" }, name(heading))),
  );
  const node = h("table", { "aria-label": label }, h("thead", {}, head), body);
  return { node, body, headings };
}

/** A row of such a table: a cell for each heading. */
export function row(headings, className = "") {
  const cells = headings.map((heading) => h("td", heading ? { "data-label": heading } : { class: "actions" }));
  return { node: h("tr", { class: className }, cells), cells };
}

/** Shows `text` in place of a list that is empty. */
export function emptyNote(text) {
  return h("p", { class: "empty", hidden: true }, text);
}
