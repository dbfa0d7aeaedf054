// Markdown of a model as nodes. The text of a model is never markup: each node is made here, its text is set as text.
// Links lead to http, https and mailto only; images are links, so that an answer fetches nothing.

import { h } from "./dom.js";

const FENCE = /^ {0,3}(```+|~~~+)\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( {0,6})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DIVIDER = /^\s*\|?\s*:?-{1,}:?\s*(\|\s*:?-{1,}:?\s*)*\|?\s*$/;
/** The deepest nesting of quotes and lists that is followed. */
const DEEPEST = 6;

/** Splits a text into blocks. A block's text does not change when more text is added behind the next block. */
export function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  let i = 0;
  const until = (kind, ends) => {
    const from = i;
    i += 1;
    while (i < lines.length && !ends(lines[i])) i += 1;
    found.push({ kind, lines: lines.slice(from, i) });
  };
  while (i < lines.length) {
    const line = lines[i];
    const fence = FENCE.exec(line);
    if (line.trim() === "") i += 1;
    else if (fence) {
      const end = fence[1];
      until("code", (other) => other.trim().startsWith(end) && other.trim().replaceAll(end[0], "") === "");
      found.at(-1).language = fence[2];
      // The closing fence ends the block and is no part of it.
      i += 1;
    } else if (HEADING.test(line)) until("heading", () => true);
    else if (RULE.test(line)) until("rule", () => true);
    else if (QUOTE.test(line)) until("quote", (other) => !QUOTE.test(other));
    else if (ITEM.test(line)) until("list", (other) => !ITEM.test(other) && !/^ {2,}\S/.test(other));
    else if (line.includes("|") && DIVIDER.test(lines[i + 1] ?? "")) until("table", (other) => !other.includes("|"));
    else until("text", (other) => other.trim() === "" || startsBlock(other));
  }
  return found.map((block) => ({ ...block, raw: block.lines.join("\n") }));
}

function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || ITEM.test(line) || RULE.test(line);
}

/** The node of one block. */
export function blockNode(block, depth = 0) {
  const { kind, lines } = block;
  if (kind === "code") {
    const name = block.language ? `code, ${block.language.slice(0, 30)}` : "code";
    return h("pre", { tabindex: "0", role: "group", "aria-label": name }, h("code", {}, lines.slice(1).join("\n")));
  }
  if (kind === "heading") {
    const [, marks, text] = HEADING.exec(lines[0]);
    // The page has headings of its own: those of an answer are below them.
    return h(`h${Math.min(6, marks.length + 3)}`, {}, inline(text));
  }
  if (kind === "rule") return h("hr");
  if (kind === "quote") {
    const inside = lines.map((line) => QUOTE.exec(line)[1]).join("\n");
    return h("blockquote", {}, depth < DEEPEST ? blocks(inside).map((inner) => blockNode(inner, depth + 1)) : inside);
  }
  if (kind === "list") return listNode(lines, depth);
  if (kind === "table") return tableNode(lines);
  return h("p", {}, inline(lines.join("\n")));
}

function listNode(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const indent = first[1].length;
  const ordered = /\d/.test(first[2]);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent) items.push([item[3]]);
    else items.at(-1).push(line.slice(Math.min(indent + 2, line.search(/\S|$/))));
  }
  const nodes = items.map(([head, ...rest]) => {
    if (!rest.length) return h("li", {}, inline(head));
    const inner =
      depth < DEEPEST ? blocks(rest.join("\n")).map((block) => blockNode(block, depth + 1)) : [rest.join("\n")];
    return h("li", {}, inline(head), inner);
  });
  return ordered ? h("ol", { start: parseInt(first[2], 10) }, nodes) : h("ul", {}, nodes);
}

function tableNode([head, , ...rows]) {
  const cells = (line) =>
    line
      .trim()
      .replace(/^\||\|$/g, "")
      .split("|")
      .map((cell) => cell.trim());
  const columns = cells(head).slice(0, 30);
  const body = rows.map((line) =>
    h(
      "tr",
      {},
      columns.map((_, c) => h("td", {}, inline(cells(line)[c] ?? ""))),
    ),
  );
  return h(
    "div",
    { class: "table-box", tabindex: "0" },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((cell) => h("th", { scope: "col" }, inline(cell))),
        ),
      ),
      h("tbody", {}, body),
    ),
  );
}

// Code, strong, emphasis, struck, image or link, bare address.
const SPAN = new RegExp(
  [
    "(`+)([^`]|[^`][\\s\\S]*?[^`])\\1(?!`)",
    "\\*\\*(?=\\S)([^*]+?)\\*\\*",
    "(?<![\\w*])[*_](?=\\S)([^*_\\n]+?)[*_](?![\\w*])",
    "~~(?=\\S)([^~]+?)~~",
    '(!?)\\[([^\\]\\n]{0,500})\\]\\(([^()\\s]{1,2000})(?:\\s+"[^"]*")?\\)',
    "(https?:\\/\\/[^\\s<>()\\]]{1,2000})",
  ].join("|"),
  "g",
);

/** The nodes of a text with spans. */
export function inline(text, depth = 0) {
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(SPAN)) {
    nodes.push(text.slice(from, match.index));
    from = match.index + match[0].length;
    const [whole, , code, strong, emphasis, struck, image, label, target, bare] = match;
    const inner = (inside) => (depth < DEEPEST ? inline(inside, depth + 1) : [inside]);
    if (code !== undefined) nodes.push(h("code", {}, code));
    else if (strong !== undefined) nodes.push(h("strong", {}, inner(strong)));
    else if (emphasis !== undefined) nodes.push(h("em", {}, inner(emphasis)));
    else if (struck !== undefined) nodes.push(h("s", {}, inner(struck)));
    else if (target !== undefined)
      nodes.push(link(target, image ? `image: ${label || target}` : label || target) ?? whole);
    else nodes.push(link(bare, bare) ?? whole);
  }
  nodes.push(text.slice(from));
  return nodes.filter((node) => node !== "");
}

/** A link, or `undefined` for an address that leads to no page. */
function link(target, text) {
  let address;
  try {
    address = new URL(target);
  } catch {
    return undefined;
  }
  if (!["http:", "https:", "mailto:"].includes(address.protocol)) return undefined;
  return h(
    "a",
    { href: address.href, target: "_blank", rel: "noopener noreferrer nofollow", referrerpolicy: "no-referrer" },
    text,
  );
}
