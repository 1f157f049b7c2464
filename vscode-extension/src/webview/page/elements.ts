// Elements of a page.

type Properties<Tag extends keyof HTMLElementTagNameMap> = Partial<
  Omit<HTMLElementTagNameMap[Tag], "style" | "role">
> & { role?: string; label?: string };

export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  { label, ...properties }: Properties<Tag> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[Tag] {
  const created = Object.assign(document.createElement(tag), properties);
  if (label) {
    created.setAttribute("aria-label", label);
  }
  created.append(...children);
  return created;
}

export function svgElement<Tag extends keyof SVGElementTagNameMap>(
  tag: Tag,
  attributes: Record<string, string | number>,
  ...children: (Node | string)[]
): SVGElementTagNameMap[Tag] {
  const created = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => created.setAttribute(name, String(value)));
  created.append(...children);
  return created;
}

/** A labeled list of options: value and text of each. */
export function choice(
  label: string,
  options: readonly (readonly [string, string])[],
  selected: string,
  changed: (value: string) => void,
): HTMLLabelElement {
  const select = element("select", { label });
  select.append(...options.map(([value, text]) => element("option", { value, selected: value === selected }, text)));
  select.onchange = () => changed(select.value);
  return element("label", {}, `${label} `, select);
}

export function button(label: string, title: string, pressed: () => void, className = ""): HTMLButtonElement {
  const created = element("button", { type: "button", title, label: title, className }, label);
  created.onclick = pressed;
  return created;
}

/** The page's only text, such as why there is no content. */
export function status(text: string): HTMLParagraphElement {
  return element("p", { className: "words", role: "status" }, text);
}

/** Has the arrow keys, Home and End move the focus between the elements of a selector, each in an item of a list. */
export function moveFocusByKeys(selector: string): void {
  document.addEventListener("keydown", (event) => {
    const elements = [...document.querySelectorAll<HTMLElement>(selector)];
    const focused = elements.findIndex((each) => each.closest("li")?.contains(document.activeElement));
    const next = { ArrowDown: focused + 1, ArrowUp: Math.max(0, focused - 1), Home: 0, End: elements.length - 1 }[event.key];
    if (next !== undefined && elements[next]) {
      elements[next].focus();
      event.preventDefault();
    }
  });
}

/** A color or font of VS Code's theme. */
export function themed(name: string, fallback: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--vscode-${name}`).trim() || fallback;
}

/** Calls `changed` when the user changes VS Code's theme. */
export function onThemeChange(changed: () => void): void {
  new MutationObserver(changed).observe(document.body, { attributes: true, attributeFilter: ["class"] });
}
