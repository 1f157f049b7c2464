// Elements of the page, and what stands in them.

type Properties<Tag extends keyof HTMLElementTagNameMap> = Partial<
  Omit<HTMLElementTagNameMap[Tag], "style" | "role">
> & { role?: string; label?: string };

export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  { label, ...properties }: Properties<Tag> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[Tag] {
  const made = Object.assign(document.createElement(tag), properties);
  if (label) {
    made.setAttribute("aria-label", label);
  }
  made.append(...children);
  return made;
}

/** A list to choose from: value and words of each. */
export function choice(
  label: string,
  options: readonly (readonly [string, string])[],
  chosen: string,
  changed: (value: string) => void,
): HTMLLabelElement {
  const select = element("select", { label });
  select.append(...options.map(([value, words]) => element("option", { value, selected: value === chosen }, words)));
  select.onchange = () => changed(select.value);
  return element("label", {}, `${label} `, select);
}

export function button(label: string, title: string, pressed: () => void): HTMLButtonElement {
  const made = element("button", { type: "button", title, label: title }, label);
  made.onclick = pressed;
  return made;
}

/** The color that VS Code's theme has by this name. */
export function themed(name: string, otherwise: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--vscode-${name}`).trim() || otherwise;
}
