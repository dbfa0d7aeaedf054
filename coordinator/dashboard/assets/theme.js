// Light or dark: as the system, unless the user chose.

const NAME = "model-boss-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

let inMemory = "system";

function chosen() {
  try {
    return localStorage.getItem(NAME) ?? "system";
  } catch {
    // A browser without storage has the choice until the page is left.
    return inMemory;
  }
}

function choose(theme) {
  inMemory = theme;
  try {
    if (theme === "system") localStorage.removeItem(NAME);
    else localStorage.setItem(NAME, theme);
  } catch {
    // As above.
  }
}

/** Follows the button; `changed` is called when colours are others. */
export function followTheme(button, changed) {
  const apply = () => {
    const theme = chosen();
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    changed();
  };
  button.addEventListener("click", () => {
    choose(NEXT[chosen()] ?? "system");
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  apply();
}
