// The children of an element, each made from something that the server sent.

/** Keeps a child as long as it is made from the same content: a step changes few, and the others are not laid out again. */
export class Children<Made extends Element> {
  private known = new Map<string, Made>();

  constructor(readonly parent: Element) {}

  /** Shows one child for each of the contents, in this order. */
  show<Of>(contents: readonly Of[], make: (of: Of) => Made): void {
    const before = this.known;
    const now = new Map<string, Made>();
    for (const of of contents) {
      const content = JSON.stringify(of);
      let key = content;
      for (let count = 2; now.has(key); count++) {
        key = `${content} ${count}`;
      }
      now.set(key, before.get(key) ?? make(of));
    }
    this.known = now;
    this.arrange([...now.values()]);
  }

  /** A child that is in its place already is not touched. */
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
