// Which view is shown: the part of the address behind `#/`.

const views = new Map();
let shown;

/** Registers a view: `{ id, title, element, show }`. */
export function addView(view) {
  views.set(view.id, view);
}

/** Whether this view is shown. */
export function isShown(id) {
  return shown === id;
}

/**
 * Scrolls a row of links so far that one is seen. `scrollIntoView` would do it, but browsers let the Tab key go on from
 * there, and the link to the content would be passed over.
 */
function reveal(row, link) {
  if (!link) return;
  const [outer, inner] = [row.getBoundingClientRect(), link.getBoundingClientRect()];
  row.scrollLeft += Math.min(0, inner.left - outer.left) || Math.max(0, inner.right - outer.right);
}

/** Follows the address. `first` is the view of an address without one. */
export function startRouting(nav, first, changed) {
  const links = new Map([...nav.querySelectorAll("a")].map((link) => [link.hash.slice(2), link]));
  const follow = (isFirst) => {
    const wanted = location.hash.startsWith("#/") ? location.hash.slice(2) : (shown ?? first);
    const next = views.has(wanted) ? wanted : first;
    if (next === shown) return;
    shown = next;
    for (const [id, view] of views) view.element.hidden = id !== shown;
    for (const [id, link] of links) {
      if (id === shown) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    reveal(nav, links.get(shown));
    document.title = `${views.get(shown).title} · model-boss`;
    views.get(shown).show?.();
    if (!isFirst) scrollTo(0, 0);
    changed(shown);
  };
  addEventListener("hashchange", () => follow(false));
  follow(true);
}
