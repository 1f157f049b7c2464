// The children of an element, each created from a part of an answer.

/** Keeps children whose content is unchanged, which avoids a new layout: a step changes few. */
export class Children<Child extends Element> {
  private known = new Map<string, Child>();

  constructor(readonly parent: Element) {}

  /** Shows one child for each content. */
  show<Content>(contents: readonly Content[], create: (content: Content) => Child): void {
    const before = this.known;
    const now = new Map<string, Child>();
    for (const content of contents) {
      const text = JSON.stringify(content);
      let key = text;
      for (let count = 2; now.has(key); count++) {
        key = `${text} ${count}`;
      }
      now.set(key, before.get(key) ?? create(content));
    }
    this.known = now;
    this.arrange([...now.values()]);
  }

  /** Moves only children that are not in their place. */
  private arrange(children: readonly Element[]): void {
    const kept = new Set(children);
    for (const child of [...this.parent.children]) {
      if (!kept.has(child)) {
        child.remove();
      }
    }
    children.forEach((child, index) => {
      if (this.parent.children[index] !== child) {
        this.parent.insertBefore(child, this.parent.children[index] ?? null);
      }
    });
  }
}
