// Light, dark, or as the system has it.

const KEY = "tensortap-theme";
const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export function theme(): Theme {
  try {
    const saved = localStorage.getItem(KEY);
    return THEMES.find((each) => each === saved) ?? "system";
  } catch {
    return "system"; // a file opened from disk may have no storage
  }
}

export function applyTheme(): void {
  document.documentElement.dataset.theme = theme();
}

export function nextTheme(): Theme {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]!;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // It holds for this page then.
  }
  document.documentElement.dataset.theme = next;
  dispatchEvent(new Event("themechange"));
  return next;
}

/** A colour of the style sheet, as three numbers. */
export function colour(name: string): [number, number, number] {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const hex = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(text);
  return hex ? [parseInt(hex[1]!, 16), parseInt(hex[2]!, 16), parseInt(hex[3]!, 16)] : [128, 128, 128];
}

export function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
